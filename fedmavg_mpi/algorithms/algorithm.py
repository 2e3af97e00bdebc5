"""What every algorithm has: its parts of a run, and the calls that the round loop makes."""

import numpy as np

from fedmavg_mpi.ledger import ProtocolLedger


class Algorithm:
    """One run's state on one rank, and the round that changes it.

    Every rank makes the same calls in the same order; what a rank has no part in returns at once.

    Parameters
    ----------
    config : AlgorithmConfig
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
    fixed, fixed_aggregation : dict
        Keys of the ``[algorithm]`` and ``[aggregation]`` sections that an algorithm fixes.
    w : ndarray
        W at the server, or wherever this rank holds it.
    setup_ledger : ProtocolLedger
        What the protocol moved before the first round.
    """

    fixed = {}
    fixed_aggregation = {}

    def __init__(self, config, comm, placement, sampler, aggregation, model, shard, clock, w):
        self.config = config
        self.comm = comm
        self.placement = placement
        self.sampler = sampler
        self.aggregation = aggregation
        self.model = model
        self.shard = shard
        self.clock = clock
        self.w = w
        self.setup_ledger = ProtocolLedger()

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

    def clients_here(self, clients):
        """Of these client ids (sorted), the ones of this rank, as indices on it."""
        own = self.placement.clients_of(self.comm.rank)
        return clients[np.searchsorted(clients, own.start) : np.searchsorted(clients, own.stop)] - own.start
