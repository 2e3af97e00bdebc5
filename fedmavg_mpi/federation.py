"""The parts of one run on one rank, put together."""

import numpy as np

from fedmavg_mpi.aggregation import METHODS
from fedmavg_mpi.algorithms import ALGORITHMS
from fedmavg_mpi.applications import APPLICATIONS
from fedmavg_mpi.balance import measured_costs
from fedmavg_mpi.clock import PHASES, Clock
from fedmavg_mpi.compression import GatherRounded
from fedmavg_mpi.history import History
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.participation import Sampler
from fedmavg_mpi.placement import Placement
from fedmavg_mpi.starts import STARTS


class Federation:
    """Server, or a worker with its clients.

    Parameters
    ----------
    comm : Communicator
    settings : Config
    store : ClientStore

    Attributes
    ----------
    placement : Placement
        Where clients are worked on: at their ranks, or all at the server where the algorithm pools the data.
    application : one of ``APPLICATIONS``
    algorithm : one of ``ALGORITHMS``
    clock : Clock
    history : History
    rule : StopRule
    rho : float
        The present penalty; at the server.
    of_row : ndarray of int64 (N,) or None
        The data set's index of each sample in client order, at the server.
    """

    def __init__(self, comm, settings, store):
        self.comm, self.settings = comm, settings
        self.n_samples, self.n_features = store.n_samples, store.n_features
        chosen = ALGORITHMS[settings.algorithm.name]
        origin = Placement(store.sizes, comm.size, store.costs)
        self.placement = origin.at_server() if chosen.pooled else origin
        with comm.together():
            self.of_row = store.of_row() if comm.is_server else None
        if settings.run.placement == "measured" and comm.size > 2 and not chosen.pooled:
            origin = self.placement = Placement(store.sizes, comm.size, self._measured_costs(store, origin))
        average = averaging(settings, comm, self.placement)
        self.application = APPLICATIONS[settings.model.kind](comm, settings, store, origin, self.placement, average)
        self.clock = Clock(lambda: comm.seconds_waited)
        algorithm = settings.algorithm
        sampler = Sampler(store.sizes, algorithm.clients_per_round, algorithm.participation, settings.run.seed)
        parts = algorithm, comm, self.placement, sampler, average, self.application.model, self.application.shard, self.clock
        w, spent = self.application.model.start(settings.run.seed, np.dtype(settings.run.dtype)), ProtocolLedger()
        if settings.model.init != "random":
            w, spent = STARTS[settings.model.init](*parts, w)
        self.algorithm = chosen(*parts, w)
        self.algorithm.setup_ledger.include(self.application.setup_ledger)
        self.algorithm.setup_ledger.include(spent)
        self.history = History(self.application.measures)
        self.rule = self.application.stop_rule(self.algorithm.limit_reason)
        self.rho = settings.model.rho

    def _measured_costs(self, store, origin):
        """What each client's round costs, by a trial on the clients that each rank would have by size."""
        with self.comm.uncounted():
            average = averaging(self.settings, self.comm, origin)
            trial = APPLICATIONS[self.settings.model.kind](self.comm, self.settings, store, origin, origin, average)
            return measured_costs(self.comm, self.settings, store, trial)

    @property
    def shard(self):
        """This rank's clients."""
        return self.application.shard

    def evaluate(self):
        """Bring W to all ranks and look at it: an Evaluation at the server, None elsewhere."""
        self.algorithm.share_model(self.algorithm.sampler.all_clients, "evaluation")
        return self.application.evaluate()

    def decide(self, s, evaluation):
        """How to go on after round ``s``: a Decision at the server, None elsewhere; and the log of what was seen."""
        if not self.comm.is_server:
            return None
        if evaluation:
            self.history.add_evaluation(s, self.rho, evaluation)
        decision = self.rule.decide(s, self.rho, evaluation)
        self.rho, self.history.stop_reason = decision.rho, decision.stop_reason
        return decision

    def settle(self, decision, *orders):
        """Bring the server's decision, and its further orders (numbers), to all ranks: whether the run goes on, and the orders."""
        message = np.array([0.0, 0.0, 0.0, 0.0, *orders])
        if self.comm.is_server:
            local_curvature = self.application.local_curvature(self.algorithm.w, decision.rho)
            message[:4] = decision.stop_reason is None, decision.rho, local_curvature, decision.new_stage
        self.comm.broadcast(message, "control", self.comm.everyone)
        goes_on, rho, local_curvature, new_stage, *orders = message.tolist()
        self.application.take_step(rho, local_curvature, bool(new_stage))
        if not goes_on:
            self.algorithm.finish()
        return bool(goes_on), *orders

    def state(self):
        """What a checkpoint keeps, as :meth:`Checkpoints.write` takes it: of the server, of this rank, of its samples and of its clients."""
        server = {}
        if self.comm.is_server:
            rule = {"rule": self.rule.state(), "rho": np.array(self.rho)}
            server = {**self.algorithm.state(), **self.history.state(), **self.application.state(), **rule}
        rank = {"ledger": self.comm.ledger.as_array(), "clock": self.clock.state()}
        private = {**self.application.private_state(), **self.algorithm.private_state()}
        return server, rank, private, self.algorithm.aggregation.state_by_client()

    def restore(self, server, rank, private, by_client):
        """Take a checkpoint's state. On another number of ranks the MPI ledger and the seconds by phase start anew."""
        self.algorithm.restore(server, private, bool(rank))
        self.application.restore(server, private)
        self.algorithm.aggregation.restore_by_client(by_client)
        self.history.restore(server)
        self.rule.restore(server["rule"])
        self.rho = float(server["rho"])
        if rank:
            self.comm.ledger.restore(rank["ledger"])
            self.clock.restore(rank["clock"])
        else:
            self.history.count_anew(self.comm.ledger.as_array())
            self.clock.restore(np.zeros((self.history.n_rounds + 1, len(PHASES))))


def averaging(settings, comm, placement):
    """How the clients' parts become one: one of ``METHODS``, or with rounded uploads."""
    if settings.algorithm.upload_dtype != "same":
        return GatherRounded(comm, placement, settings.algorithm.upload_dtype)
    return METHODS[settings.aggregation.method, settings.algorithm.upload](comm, placement)
