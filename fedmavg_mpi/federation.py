"""The parts of one run on one rank, put together."""

import numpy as np

from fedmavg_mpi.aggregation import METHODS
from fedmavg_mpi.algorithms import ALGORITHMS
from fedmavg_mpi.applications import APPLICATIONS
from fedmavg_mpi.clock import Clock
from fedmavg_mpi.participation import Sampler
from fedmavg_mpi.placement import Placement


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
        average = METHODS[settings.aggregation.method, settings.algorithm.upload](comm, self.placement)
        self.application = APPLICATIONS[settings.model.kind](comm, settings, store, origin, self.placement, average)
        self.clock = Clock()
        algorithm = settings.algorithm
        sampler = Sampler(store.sizes, algorithm.clients_per_round, algorithm.participation, settings.run.seed)
        self.algorithm = chosen(
            algorithm, comm, self.placement, sampler, average, self.application.model, self.application.shard, self.clock,
            self.application.model.start(settings.run.seed, np.dtype(settings.run.dtype)),
        )  # fmt: skip
        self.algorithm.setup_ledger.include(self.application.setup_ledger)

    @property
    def shard(self):
        """This rank's clients."""
        return self.application.shard

    def evaluate(self):
        """Bring W to all ranks and look at it: an Evaluation at the server, None elsewhere."""
        self.algorithm.share_model(self.algorithm.sampler.all_clients, "evaluation")
        return self.application.evaluate()

    def settle(self, decision):
        """Bring the server's decision to all ranks; False where the run ends."""
        message = np.zeros(4)
        if self.comm.is_server:
            local_curvature = self.application.local_curvature(self.algorithm.w, decision.rho)
            message[:] = decision.stop_reason is None, decision.rho, local_curvature, decision.new_stage
        self.comm.broadcast(message, "control", self.comm.everyone)
        goes_on, rho, local_curvature, new_stage = message.tolist()
        self.application.take_step(rho, local_curvature, bool(new_stage))
        if not goes_on:
            self.algorithm.finish()
        return bool(goes_on)
