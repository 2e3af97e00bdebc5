"""What every algorithm has: its parts of a run, and the calls that the round loop makes."""

from fedmavg_mpi import config
from fedmavg_mpi.ledger import ProtocolLedger


class Algorithm:
    """One run's state on one rank, and the round that changes it.

    Every rank makes the same calls in the same order; what a rank has no part in returns at once.

    Parameters
    ----------
    settings : AlgorithmConfig
    comm : Communicator
    placement : Placement
        Clients of every rank.
    sampler : Sampler
    aggregation : one of ``aggregation.METHODS``
    model : the server's half of the model, the same on every rank
    shard : this rank's clients
    clock : Clock
    w : ndarray
        The first W, which every rank draws alike.

    Attributes
    ----------
    kinds : tuple of str
        Kinds of models that the algorithm is for.
    fixed : dict of str to dict
        Keys that the algorithm fixes, by section.
    pooled : bool
        Whether it works on all clients' data at the server.
    takes_start : bool
        Whether ``model.init`` may be another than random.
    limit_reason : str
        Why a run ends at its last round.
    resumable : bool
        Whether a run can go on from a checkpoint; else its few rounds start again.
    w : ndarray
        W at the server, or wherever this rank holds it.
    setup_ledger : ProtocolLedger
        What the protocol moved before the first round.
    """

    kinds = ("clustering", "ratings")
    fixed = {}
    pooled = False
    takes_start = False
    limit_reason = "round limit"
    resumable = True

    def __init__(self, settings, comm, placement, sampler, aggregation, model, shard, clock, w):
        self.config = settings
        self.comm = comm
        self.placement = placement
        self.sampler = sampler
        self.aggregation = aggregation
        self.model = model
        self.shard = shard
        self.clock = clock
        self.w = w
        self.setup_ledger = ProtocolLedger()

    @classmethod
    def resolve(cls, settings):
        """The configuration with what this algorithm fixes."""
        for section, keys in cls.fixed.items():
            settings = config.replace(settings, section, **keys)
        return settings

    def run_round(self, s):
        """Carry out communication round ``s``.

        Returns
        -------
        draw : Draw
        steps : int
            Steps on W in this round.
        ledger : ProtocolLedger
        """
        raise NotImplementedError

    def share_model(self, clients, kind):
        """Bring the present factors to the ranks of these clients (sorted ids), which are to work with them or to evaluate them."""
        raise NotImplementedError

    def finish(self):
        """After the last round: see that the server holds the W that the run leaves behind."""

    def state(self):
        """What a checkpoint keeps of the server's part: dict of str to ndarray."""
        latest = {f"latest/{kind}": values for kind, values in self.aggregation.latest.items()}
        return {"w": self.w, **latest}

    def private_state(self):
        """What a checkpoint keeps of this rank's clients beside H: dict of str to ndarray (rows here x ...)."""
        return {}

    def restore(self, state, private, same_ranks):
        """Take a checkpoint's state.

        Parameters
        ----------
        state, private : dict of str to ndarray
            As :meth:`state` and :meth:`private_state` gave them; ``private`` is empty on a rank without clients.
        same_ranks : bool
            Whether the run had as many ranks.
        """
        self.w[:] = state["w"]
        self.shard.receive(self.w)
        prefix = "latest/"
        self.aggregation.latest = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}

    def clients_here(self, clients):
        """Of these client ids (sorted), the ones of this rank, as indices on it."""
        begin, end = self.placement.clients_on(self.comm.rank, clients)
        return clients[begin:end] - self.placement.cut[self.comm.rank]
