"""The document of `isray status`: the nodes of a cluster and what is known of them, on Ray and of Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from experiments.cli.metadata_quorum import role_of
from experiments.cli.output import fail
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.engines.clusters.node_commands import (
    Ask,
    NodeAction,
    NodeCommand,
    NodeRow,
    NodeState,
    SupervisorGoneError,
)
from protocol.errors import ErrorCode
from protocol.features import UNCLEAN_RECOVERY_ENABLED
from protocol.ids import NO_EPOCH, NO_LEADER, RECOVERY_MANAGER, STORE, Epoch, NodeId, is_controller, node_name
from protocol.messages.cluster import DescribedBroker
from protocol.messages.quorum import DescribeQuorumResponse, ReplicaState

_BROKER, _CONTROLLER = "broker-", "controller-"
NOT_REGISTERED = "not registered"


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker of `isray status --json`. One is not registered that has no session with the store (`v3`), or whose
    process waits until the session of the incarnation before has ended: until then the controller has the state of that
    one. `host` and `ray_node` are of its process, None where that is not known.
    """

    node: str
    running: bool
    state: str = NOT_REGISTERED
    broker_epoch: int = NO_EPOCH
    rack: str | None = None
    leads: int = 0
    replicas: int = 0
    host: str | None = None
    ray_node: str | None = None


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """A controller of `isray status --json`; what the leader of the quorum does not know is None, as are `host` and
    `ray_node` where there is no process or it is not known.
    """

    node: str
    running: bool
    role: str | None
    votes: bool
    directory_id: str | None
    lag: int | None
    host: str | None = None
    ray_node: str | None = None


Row = TypeVar("Row", BrokerRow, ControllerRow)


@dataclass(frozen=True, slots=True)
class ClusterDocument:
    """`isray status --json`, without what the cluster's state file adds."""

    controller: int
    controller_running: bool
    controllers: list[ControllerRow]
    voters: list[int]
    recovery_manager_running: bool
    brokers: list[BrokerRow]
    others: list[str]
    features: dict[str, int]
    healthy: bool


def cluster_document(
    admin: AdminClient,
    running: set[str],
    started: Sequence[str],
    rows: Sequence[NodeRow],
    broker_epoch: Callable[[str], Epoch | None],
) -> ClusterDocument:
    """The state of a cluster. `running` are the names of the nodes that have a process, `started` of those that were
    started with the cluster, as far as that is known; `rows` are the nodes as the supervisor knows them. Registered
    brokers and voters are listed in any case. `broker_epoch` asks a broker that runs (`Opened`).
    """
    processes = {row.node: row for row in rows}
    silent = {row.node for row in rows if row.state is NodeState.PAUSED}
    epochs = {name: broker_epoch(name) for name in sorted(running - silent) if name.startswith(_BROKER)}
    quorum, has_quorum = _quorum(admin)
    cluster = admin.describe_cluster()
    partitions = [partition for topic in admin.describe_topics() for partition in topic.partitions]
    features = {it.name: it.finalized_version_level for it in admin.describe_features()} if has_quorum else {}
    brokers = [
        BrokerRow(
            node=node_name(broker.broker_id),
            running=node_name(broker.broker_id) in running,
            state=_state_of(broker, epochs.get(node_name(broker.broker_id))),
            broker_epoch=broker.broker_epoch,
            rack=broker.rack,
            leads=sum(partition.leader_id == broker.broker_id for partition in partitions),
            replicas=sum(broker.broker_id in partition.replica_nodes for partition in partitions),
        )
        for broker in cluster.brokers
    ]
    gone = sorted({name for name in started if name.startswith(_BROKER)} - {row.node for row in brokers})
    brokers += [BrokerRow(name, name in running) for name in (gone if not has_quorum else ())]
    brokers = [_placed(row, processes.get(row.node)) for row in brokers]
    controllers = [_placed(row, processes.get(row.node)) for row in _controllers(quorum, running, started)]
    voters = [] if quorum is None else quorum.voters
    has_majority = sum(row.votes and row.running for row in controllers) > len(voters) // 2
    manager = node_name(RECOVERY_MANAGER) in running
    active = cluster.controller_id if not has_quorum else NO_LEADER if quorum is None else quorum.leader_id
    is_active = active != NO_LEADER and node_name(active) in running
    return ClusterDocument(
        controller=active,
        controller_running=is_active,
        controllers=controllers,
        voters=[voter.replica_id for voter in voters],
        recovery_manager_running=manager,
        brokers=brokers,
        others=sorted(running - {row.node for row in brokers} - {row.node for row in controllers}),
        features=features,
        healthy=(has_majority if has_quorum else node_name(STORE) in running)
        and is_active
        and (manager or not features.get(UNCLEAN_RECOVERY_ENABLED))
        and all(broker.running and broker.state == "unfenced" for broker in brokers),
    )


def _placed(row: Row, process: NodeRow | None) -> Row:
    """The row with the machine of the node's process, as far as that is known."""
    return row if process is None else replace(row, host=process.host, ray_node=process.ray_node)


def _quorum(admin: AdminClient) -> tuple[DescribeQuorumResponse | None, bool]:
    """The quorum as its leader knows it, None where no controller is active; and whether the generation has one."""
    try:
        return admin.describe_quorum(), True
    except AdminError as error:
        if error.error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNSUPPORTED_VERSION):
            raise
        return None, error.error is not ErrorCode.UNSUPPORTED_VERSION


def _controllers(
    quorum: DescribeQuorumResponse | None, running: set[str], started: Sequence[str]
) -> list[ControllerRow]:
    """A row per controller: its process and its role in the quorum. Of several disks of one controller, the one that
    fetched last belongs to its process.
    """
    disks: dict[NodeId, ReplicaState] = {}
    for state in () if quorum is None else (*quorum.voters, *quorum.observers):
        newest = disks.get(state.replica_id)
        if is_controller(state.replica_id) and (newest is None or state.last_fetch_ms > newest.last_fetch_ms):
            disks[state.replica_id] = state
    known = {node_name(node): state for node, state in disks.items()}
    others = {name for name in (*running, *started) if name.startswith(_CONTROLLER)}
    return [
        ControllerRow(
            node=name,
            running=name in running,
            role=None if quorum is None or state is None else role_of(state, quorum).lower(),
            votes=quorum is not None and state in quorum.voters,
            directory_id=None if state is None else state.replica_uuid,
            lag=None if state is None else state.lag,
        )
        for name, state in ((name, known.get(name)) for name in sorted({*known, *others}))
    ]


def _state_of(registered: DescribedBroker, epoch: Epoch | None) -> str:
    """The state of a broker by the controller; `epoch`: the one of its process, None where that is not known."""
    if epoch not in (None, registered.broker_epoch):
        return NOT_REGISTERED
    return _broker_state(registered.is_fenced, registered.in_controlled_shutdown)


def _broker_state(fenced: bool, in_controlled_shutdown: bool) -> str:
    return "fenced" if fenced else "controlled shutdown" if in_controlled_shutdown else "unfenced"


def kafka_document(ask: Ask) -> tuple[ClusterDocument, tuple[NodeRow, ...]]:
    """The state of a cluster, and its processes. Exit code 1 where the supervisor does not answer."""
    try:
        answer = ask(NodeCommand(action=NodeAction.DESCRIBE))
    except SupervisorGoneError as error:
        fail(f"isray: {error}")
    report, running = answer.report, {row.node for row in answer.rows if row.pid is not None}
    assert report is not None, "the supervisor of a cluster of Apache Kafka describes it"
    brokers = [
        BrokerRow(
            node=node_name(it.broker),
            running=node_name(it.broker) in running,
            state=_broker_state(it.fenced, it.in_controlled_shutdown),
            broker_epoch=it.broker_epoch,
            rack=it.rack,
            leads=it.leads,
            replicas=it.replicas,
        )
        for it in report.brokers
    ]
    names = {row.node for row in answer.rows} - {row.node for row in brokers}
    controllers = [
        ControllerRow(name, name in running, report.roles.get(node), node in report.voters, None, None)
        for name, node in sorted((name, int(name.rpartition("-")[2])) for name in names)
        if is_controller(node)
    ]
    has_majority = sum(row.votes and row.running for row in controllers) > len(report.voters) // 2
    is_active = report.controller != NO_LEADER
    is_whole = all(row.running and row.state == "unfenced" for row in brokers)
    document = ClusterDocument(
        controller=report.controller,
        controller_running=is_active,
        controllers=controllers,
        voters=list(report.voters),
        recovery_manager_running=False,
        brokers=brokers,
        others=[],
        features=report.features,
        healthy=has_majority and is_active and is_whole,
    )
    return document, answer.rows
