"""What the checks of a state read of each node, as a number.

The result of a check is the same in all states in which these are, and `checker.py` computes it once. That nothing is
missing here, a test makes sure: it compares searches with those in which every check reads everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from experiments.engines.sim.disk import SimStorage
from experiments.hunt.explore.machines import AnyNode, DeadBroker, Local, Machines
from protocol.broker.context import Replica
from protocol.broker.leadership import Leadership
from protocol.config import NUM_REPLICA_FETCHERS
from protocol.controller.metrics import needs_user
from protocol.ids import METADATA_LOG, NodeId
from protocol.log.replica_log import ReplicaLog
from protocol.metadata.image import MetadataImage
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode

_ALL_RECORDS = 2**62


class Views(dict[Local, int]):
    """Parts of each node's state, by the number of the state; what they are together has a number as well."""

    def __init__(self, machines: Machines, *parts_of: Callable[[AnyNode], object]) -> None:
        super().__init__()
        self._machines, self._parts_of = machines, parts_of
        self._numbers: dict[object, int] = {}

    def __missing__(self, local: Local) -> int:
        node = self._machines.nodes[local]
        parts = tuple([part_of(node) for part_of in self._parts_of])
        number = self[local] = self._numbers.setdefault(parts, len(self._numbers))
        return number


_Node = TypeVar("_Node", bound=AnyNode)


def _of(kind: type[_Node]) -> Callable[[Callable[[_Node], object]], Callable[[AnyNode], object]]:
    """A view of nodes of a kind; of all others it is None."""
    return lambda view: lambda node: view(node) if isinstance(node, kind) else None


@_of(ControllerNode)
def committed(node: ControllerNode) -> object:
    """All that the controller has committed but the length of its log, and what its gauges count."""
    image = node.state.image
    return (
        node.is_active,
        tuple(image.brokers.values()),
        tuple((topic.name, topic.first_leader_epoch) for topic in image.topics.values()),
        tuple(image.partitions()),
        tuple((scope, tuple(overrides.items())) for scope, overrides in image.configs.items()),
        (image.features, tuple(image.feature_levels.items()), tuple(image.acls)),
        tuple((name, tuple(sorted(members))) for name, members in node.gauges().items()),
        tuple(needs_user(node.state, key, state) for key, state in image.partitions()),
    )


@_of(ControllerNode)
def leaders(node: ControllerNode) -> object:
    """Which partitions the controller has, and who leads them in which epoch."""
    return node.is_active, tuple(
        (key, state.first_leader_epoch, state.leader, state.leader_epoch)
        for key, state in node.state.image.partitions()
    )


def replayed(node: AnyNode) -> object:
    """How much of the metadata log a broker or the controller has replayed, and the states of partitions then."""
    if isinstance(node, ControllerNode):
        return node.is_active, *_replayed(node.state.image)
    return _replayed(node.context.image) if isinstance(node, BrokerNode) else None


def _replayed(image: MetadataImage) -> tuple[object, ...]:
    return (
        image.next_offset,
        tuple((topic.name, topic.topic_id) for topic in image.topics.values()),
        tuple(image.partitions()),
    )


def itself(node: AnyNode) -> object:
    """A broker's life cycle, its partitions, replicas with records, leaderships, and the logs on its disk."""
    if isinstance(node, DeadBroker):
        return node.broker, disk(node)
    if not isinstance(node, BrokerNode):
        return None
    context = node.context
    partitions = context.image.partitions()
    return (
        node.node_id,
        node.state,
        context.broker_epoch,
        context.image.next_offset > context.broker_epoch,
        tuple((key, state.first_leader_epoch, node.node_id in state.replicas) for key, state in partitions),
        tuple(context.image.acls),
        tuple(map(_replica, context.replicas.values())),
        disk(node),
    )


def _replica(replica: Replica) -> object:
    leadership, fetch = replica.leadership, replica.fetch_state
    return (
        (replica.key, replica.name, replica.leader_id, replica.leader_epoch),
        _log(replica.log),
        fetch and (fetch.current_leader_epoch, fetch.fetch_offset),
        leadership and (leadership.leader_epoch, leadership.recovery_state, leadership.isr, leadership.maximal_isr),
    )


def _log(log: ReplicaLog) -> object:
    batches = log.storage.read(log.start_offset, _ALL_RECORDS) if log.end_offset > log.start_offset else ()
    records = tuple(
        (batch.base_offset, batch.payload, batch.producer_id, batch.producer_epoch, batch.base_sequence)
        for batch in batches
    )
    return log.start_offset, log.high_watermark, log.end_offset, log.latest_epoch, records


@_of(BrokerNode)
def high_watermark(node: BrokerNode) -> object:
    """A running broker's high watermark, with its incarnation: it may not fall in the next step."""
    marks = tuple((key, replica.log.high_watermark) for key, replica in node.context.replicas.items())
    return node.context.broker_epoch, marks


@_of(BrokerNode)
def incarnation(node: BrokerNode) -> object:
    return node.context.broker_epoch


def ends(node: AnyNode) -> object:
    """A running broker's epoch, the ends and epochs of its replicas, the ISRs it leads with; every broker's disk."""
    if not isinstance(node, BrokerNode):
        return disk(node)
    context = node.context
    replicas = [
        (_place(replica), replica.log.start_offset, replica.log.end_offset, led and (led.isr, led.maximal_isr))
        for replica in context.replicas.values()
        for led in [replica.leadership]
    ]
    return context.broker_epoch, _known(context.image), tuple(replicas), disk(node)


@_of(BrokerNode)
def counted(node: BrokerNode) -> object:
    """The ends of a running broker's replicas, and how far each leads it to believe its followers to be."""
    context, replicas = node.context, node.context.replicas.values()
    progress = [(_place(replica), replica.log.end_offset, _progress(replica.leadership)) for replica in replicas]
    return context.broker_epoch, _known(context.image), tuple(progress)


def _place(replica: Replica) -> object:
    return replica.key, replica.leader_id, replica.leader_epoch


def _progress(leadership: Leadership | None) -> object:
    return leadership and tuple((name, f.end_offset, f.broker_epoch) for name, f in leadership.followers.items())


def _known(image: MetadataImage) -> object:
    """Which partitions a broker knows, by what distinguishes partitions of the same name."""
    return tuple((key, state.first_leader_epoch) for key, state in image.partitions())


@_of(BrokerNode)
def sessions(node: BrokerNode) -> object:
    """A running broker's fetch sessions, as a leader and as a follower, and which of them it uses."""
    context, fetchers = node.context, range(node.context.config.int_value(NUM_REPLICA_FETCHERS))
    others: list[NodeId] = [broker for broker in context.image.brokers if broker != node.node_id]
    epochs = [(other, node.fetch_sessions.epoch_of(other)) for other in others]
    pairs = [(other, fetcher) for other in others for fetcher in fetchers]
    served = [node.fetch_sessions.session(pair) for pair in pairs]
    began = [node.fetcher.session(*pair) for pair in pairs]
    roles = [
        (held.leader_id, held.leadership and tuple(held.leadership.followers)) for held in context.replicas.values()
    ]
    return context.broker_epoch, tuple(epochs), tuple(served), tuple(began), tuple(roles)


def disk(node: AnyNode) -> object:
    """The logs of partitions on a broker's disk: where they begin and end."""
    storage = node.disk if isinstance(node, DeadBroker) else node.storage if isinstance(node, BrokerNode) else None
    if not isinstance(storage, SimStorage):
        return None
    names = [name for name in storage.log_names() if name != METADATA_LOG]
    return tuple((name, storage.open_log(name).start_offset, storage.log_end(name)) for name in names)
