"""A soak on a cluster that runs already (`isray up`): load and faults as `run.py` has them, on a topic of its own.

The cluster has to be whole at the beginning, and is as it was at the end, also after an error or an interrupt: what the
soak has killed is started, what it has paused is resumed, links that are not whole are healed, and its topic is
deleted. One soak at a time may run on a cluster, which a lock beside the cluster's state file sees to.

The verdict is that of `isray check` on what the soak has recorded, which begins with the soak: what depends on earlier
events of the nodes is not judged. It presumes that no one else removes data meanwhile, as `isray node kill --lose`
does.
"""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import Signals
from uuid import uuid4

from experiments.engines.clusters.cluster_state import ClusterState, socket_path
from experiments.engines.clusters.node_commands import NodeState
from experiments.engines.ray.attached import ActionRefusedError, AttachedEngine, attached
from experiments.hunt.soak.cluster import NotHealedError, SoakCluster
from experiments.hunt.soak.faults import OWN_RAY_ONLY
from experiments.hunt.soak.run import OnFault, SoakOptions, SoakResult, is_kept, judge, run_on, written
from experiments.support.errors import InputError
from protocol.config import LISTENERS
from protocol.features import Generation
from protocol.ids import BrokerId, NodeId

MIN_BROKERS = 3
PLAINTEXT = "PLAINTEXT"


class RunningSoakCluster(SoakCluster):
    """`SoakCluster` on a running cluster: signals go to its supervisor, and only processes of this machine have their
    memory measured.
    """

    def __init__(self, engine: AttachedEngine) -> None:
        super().__init__(engine, None, {}, f"soak-{uuid4().hex[:8]}")
        self._supervised = engine.cluster

    def await_whole(self) -> None:
        super().await_whole()
        here, rows = socket.gethostname(), self._supervised.rows()
        self.pids = {node: row.pid for node, row in rows.items() if row.pid is not None and row.host == here}

    def require_whole_links(self) -> None:
        self._supervised.require_whole_links()

    def signal(self, node: NodeId, number: Signals) -> None:
        """As `SoakCluster.signal`; SIGKILL of a node that has ended meanwhile does nothing."""
        try:
            self._supervised.signal(node, number)
        except ActionRefusedError:
            if number is not Signals.SIGKILL or self._supervised.rows()[node].state is not NodeState.ENDED:
                raise

    def has_reported_full_disk(self, broker: BrokerId, before: int) -> bool:
        """As `SoakCluster.has_reported_full_disk`; of a broker that has ended the supervisor has read the report."""
        reported = super().has_reported_full_disk(broker, before)
        return reported or "disk has failed" in self._supervised.rows()[broker].reason

    def restore(self) -> None:
        """Brings the cluster back to what it was. NotHealedError where it does not become whole."""
        if self._supervised.links():
            self.engine.heal_links()
        for node, row in self._supervised.rows().items():
            with suppress(ActionRefusedError):  # another operator was first
                if row.state is NodeState.PAUSED:
                    self.engine.resume(node)
                elif row.state is NodeState.ENDED:
                    self.engine.start(node)
        if self.partitions:
            self.delete_topic()
        self.await_whole()


def soak_running(options: SoakOptions, state: ClusterState, on_fault: OnFault) -> SoakResult:
    """Runs a soak on the cluster of `state` and writes its files to `options.out`, a new or empty folder; call from the
    main thread. InputError where the cluster cannot have it, or has one already.
    """
    require_possible(state, options.faults, options.kafka_clients)
    with only_soak(state), attached(state, is_kept) as engine:
        cluster = RunningSoakCluster(engine)
        _require_whole(cluster)
        with written(options) as (result, writer):
            writer.record(engine)
            try:
                run_on(cluster, writer, result, on_fault)
                judge(cluster, writer, result)
            finally:
                try:
                    cluster.restore()
                except (NotHealedError, ActionRefusedError) as error:
                    result.findings.append(f"the cluster is not as it was: {error}")
    return result


def require_possible(state: ClusterState, faults: Sequence[str], kafka_clients: bool = False) -> None:
    """InputError where a cluster cannot have a soak with these faults, or by Kafka's clients."""
    options = state.options
    for kind in faults:
        if kind in OWN_RAY_ONLY:
            raise InputError("--faults", "", kind, "a fault of nodes: the Ray of a running cluster is not the soak's")
    if options.generation is not Generation.KIP_966:
        allowed = f"generation {Generation.KIP_966.value}, where no fault of a soak may lose a record"
        raise InputError("--name", "", f"{options.name}, of generation {options.generation.value}", allowed)
    if options.brokers < MIN_BROKERS:
        raise InputError("--name", "", f"{options.name}, with {options.brokers} brokers", f"{MIN_BROKERS} at least")
    protocol = options.config.get(LISTENERS, "").partition("://")[0]
    if kafka_clients and protocol != PLAINTEXT:
        found = f"{options.name}, with {protocol or 'no'} listeners"
        raise InputError("--kafka-clients", "", found, f"a cluster with {PLAINTEXT} listeners (isray up --listeners)")


def _require_whole(cluster: RunningSoakCluster) -> None:
    """InputError unless the cluster is whole."""
    if not cluster.engine.run_until(cluster.is_whole, WHOLE_WITHIN_MS):
        raise InputError("--name", "", "a cluster that is not whole", "all nodes in service (isray status)")
    cluster.require_whole_links()


WHOLE_WITHIN_MS = 15_000


@contextmanager
def only_soak(state: ClusterState) -> Iterator[None]:
    """Holds the lock of the soaks on a cluster for the block. InputError where another soak has it."""
    path = socket_path(state.options.name).with_suffix(".soak")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = f"{state.options.name}, on which a soak runs"
            raise InputError("--name", "", found, "one soak at a time on a cluster") from error
        yield
