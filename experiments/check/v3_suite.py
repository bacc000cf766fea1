"""The invariants of generation `v3`, and the tolerance within which it promises that nothing acknowledged is lost.

`STORE_RULES` hold with any fault. A partition leaves tolerance, for the rest of the run, by what V3 does not promise:

- an unclean election (A14, M26, M2);
- the election of a member of the ISR that has truncated to its own high watermark, lacks what was committed, and has
  not fetched again what it had (N1, M42);
- the election of a replica that the ISR has admitted below what was committed (A45, N5);
- a disk loses records.

Beyond tolerance replicas may differ at equal offsets, too (M42), and high watermarks go back in any case (N6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.check import rules
from experiments.check.truth import GroundTruth
from experiments.engines.sim.cluster import SimCluster
from protocol.broker.context import Replica, log_name
from protocol.events.base import Trace
from protocol.events.broker import (
    BecameFollower,
    BecameLeader,
    HighWatermarkAdvanced,
    IsrCommitted,
    LogTruncated,
    RecordsFetched,
)
from protocol.events.store import CommandCarriedOut, ControllerElected, StoreChanged, StoreSessionEnded
from protocol.ids import NO_EPOCH, STORE, BrokerId, Epoch, NodeId, Offset, TopicIdPartition, TopicPartition
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store import paths
from protocol.v3.store.node import StoreNode
from protocol.v3.store.records import LeaderAndIsr, TopicNode, stored_state

STORE_RULES = {
    "VersionsGrow": "a change of a node raises its version by one; a new node begins at 0 (A3, N2)",
    "EphemeralsHaveSessions": "an ephemeral node belongs to an open session (A4, A5)",
    "OneControllerPerEpoch": "one broker is elected in a controller epoch, and epochs rise (A35, M34)",
    "DecisionsAreFenced": "a decision is written under the controller epoch that the store then has (A35, M34)",
    "LeaderEpochsRise": "a decision raises the leader epoch by one; an ISR change keeps leader and epoch (A16, A7)",
    "ElectionAddsNoMember": "a decision takes the ISR from the store; only a leader's proposal adds to it (A13, A16)",
    "LeaderInIsr": "a leader is in its ISR, which has no member twice (A13, A14)",
    "CommandsInOrder": "a broker obeys no controller of an older epoch, and none that was not elected (A25, A35, M35)",
    "InitIsObeyed": "after INIT a broker holds what INIT names and nothing else (A24)",
    "BrokerStatesRise": "what a broker knows of a partition it holds is never replaced by something older (A25)",
    "OneLeaderPerEpoch": "a broker leads in an epoch that the store gave it; a replica's epochs rise (A2, A25, M35)",
    "LeaderUsesStoredIsr": "the ISR of a leader, also of a deposed one, is that of its version in the store (A46)",
    "ReplicationQuorumSuperset": "the leader waits for every member of the ISR in the store (A48, M30)",
    "LeaderCompleteness": "a new leader has all that was committed, within tolerance",
}


@dataclass(slots=True)
class Published:
    """What the store has published of one partition: its state by version, and the present one (None: deleted).
    `committed` is the highest high watermark that a leader had in its own epoch. `short`: the replicas that may lack
    some of it, as V3 allows, with the offset up to which they have to fetch.
    """

    versions: dict[int, LeaderAndIsr] = field(default_factory=dict)
    state: LeaderAndIsr | None = None
    committed: Offset = 0
    short: dict[BrokerId, Offset] = field(default_factory=dict)


class V3Invariants:
    """The rules on one cluster of `v3`; `report` takes the name of a rule, the partition or None, and the violation."""

    def __init__(
        self, cluster: SimCluster, truth: GroundTruth, report: Callable[[str, TopicPartition | None, str], None]
    ) -> None:
        self._cluster = cluster
        self._truth = truth
        self._report = report
        self._versions: dict[str, int] = {}
        self._partitions: dict[TopicPartition, Published] = {}
        self._deleted: set[TopicPartition] = set()
        self._born: dict[TopicPartition, str] = {}
        self._again: dict[TopicPartition, bool] = {}
        """Partitions whose names deleted ones had; whether these were of the same topic."""
        self._controllers: dict[tuple[str, Epoch], BrokerId] = {}
        self._epoch = 0
        self._commanded: dict[tuple[NodeId, int], Epoch] = {}
        self._known: dict[tuple[NodeId, TopicIdPartition], tuple[int, Epoch, int]] = {}
        self._led: dict[tuple[NodeId, int, TopicPartition], Epoch] = {}
        self._leaders: dict[tuple[TopicPartition, Epoch], NodeId] = {}
        self._touched: dict[TopicPartition, None] = {}
        self._topic_ids: dict[str, str] = {}
        self.log_names: dict[str, TopicPartition] = {}

    def observe(self, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, StoreChanged):
            self._observe_change(trace)
        elif isinstance(trace, StoreSessionEnded):
            self._check_ephemerals()
        elif isinstance(trace, ControllerElected):
            wrong = rules.one_leader(self._controllers, paths.CONTROLLER, trace.epoch, node)
            if trace.epoch > self._epoch:
                wrong = f"broker {node} is elected in epoch {trace.epoch}; the store has {self._epoch}"
            self._report_if("OneControllerPerEpoch", None, wrong)
        elif isinstance(trace, CommandCarriedOut):
            self._observe_command(node, trace)
        elif isinstance(trace, BecameLeader | BecameFollower):
            self._observe_role(node, trace)
        elif isinstance(trace, IsrCommitted):
            self._touched[trace.partition] = None
        elif isinstance(trace, HighWatermarkAdvanced) and self._is_present(node, trace.partition):
            known = self.of(trace.partition)
            self._touched[trace.partition] = None
            known.committed = max(known.committed, trace.high_watermark)
        elif isinstance(trace, LogTruncated):
            known = self.of(trace.partition)
            known.short[node] = max(known.short.get(node, 0), trace.log_end)
        elif isinstance(trace, RecordsFetched):
            known = self.of(trace.partition)
            if node in known.short and trace.log_end >= max(known.short[node], known.committed):
                del known.short[node]

    def _report_if(self, rule: str, partition: TopicPartition | None, wrong: str, who: str = "") -> None:
        """Reports what a rule has found wrong, if anything; `who` did it."""
        if wrong:
            self._report(rule, partition, f"{who}{wrong}")

    def of(self, partition: TopicPartition) -> Published:
        return self._partitions.setdefault(partition, Published())

    # -- the store -----------------------------------------------------------------------------------------------------

    def _observe_change(self, change: StoreChanged) -> None:
        before = self._versions.get(change.path, -1)
        if change.version not in (-1, before + 1):
            self._report("VersionsGrow", None, f"{change.path} has version {change.version} after {before}")
        if change.version < 0:
            self._versions.pop(change.path, None)
        else:
            self._versions[change.path] = change.version
        if change.path == paths.CONTROLLER_EPOCH:
            self._epoch = int(change.data)
        elif change.path.endswith("/leaderAndISR"):
            self._observe_state(change)
        elif change.version >= 0 and change.path.startswith(f"{paths.TOPICS}/"):
            _, names = paths.locate(change.path)
            if len(names) == 1:
                topic = TopicNode.decode(change.path, change.data.encode())
                self._topic_ids[names[0]] = topic.topic_id
                for index in topic.partitions:
                    name = log_name(TopicIdPartition(topic.topic_id, index))
                    self.log_names[name] = TopicPartition(names[0], index)
        if change.path == paths.CONTROLLER or change.path.startswith(f"{paths.BROKER_IDS}/"):
            self._check_ephemerals()

    def _check_ephemerals(self) -> None:
        store = self._cluster.nodes.get(STORE)
        if isinstance(store, StoreNode):
            for path, node in store.state.tree.items():
                if node.owner and node.owner not in store.state.sessions:
                    self._report("EphemeralsHaveSessions", None, f"{path} is of session {node.owner}, which has ended")

    def _observe_state(self, change: StoreChanged) -> None:
        partition = paths.locate(change.path)
        key = TopicPartition(partition[1][0], int(partition[1][1]))
        state = None if change.version < 0 else stored_state(change.path, change.data.encode())
        if state is None:
            self._forget(key)
            return
        self._deleted.discard(key)
        known = self.of(key)
        if known.state is None:
            topic_id = self._topic_ids.get(key.topic, "")
            if key in self._born:
                self._again[key] = self._born[key] == topic_id
            self._born[key] = topic_id
        before = known.state
        known.versions[change.version] = state
        known.state = state
        self._touched[key] = None
        self._report_if("LeaderInIsr", key, rules.leader_is_in_isr(state))
        if before is not None:
            self._check_transition(key, before, state)
        author = state.leader_epoch, state.controller, state.controller_epoch
        is_decision = before is None or author != (before.leader_epoch, before.controller, before.controller_epoch)
        if is_decision and state.controller_epoch != self._epoch:
            wrong = f"a decision of controller epoch {state.controller_epoch} in epoch {self._epoch}"
            self._report("DecisionsAreFenced", key, wrong)
        truth = self._truth.of(key)
        truth.tolerant = truth.tolerant and not state.is_unclean_leader
        for broker in [] if before is None else [broker for broker in state.isr if broker not in before.isr]:
            replica = self._replica(broker, key)
            if (-1 if replica is None else replica.log.end_offset) < known.committed:
                known.short[broker] = known.committed

    def _forget(self, key: TopicPartition) -> None:
        """A partition is deleted; a later one of that name is another one."""
        self._partitions.pop(key, None)
        self._truth.partitions.pop(key, None)
        self._deleted.add(key)
        self._led = {place: epoch for place, epoch in self._led.items() if place[2] != key}
        self._leaders = {place: node for place, node in self._leaders.items() if place[0] != key}

    def _is_present(self, node: NodeId, key: TopicPartition) -> bool:
        """Whether the node means by this name the partition that the store has: it is not deleted, not one that was
        removed and added again, and of the same topic. A replay of a recording has no nodes to distinguish topics of
        one name.
        """
        broker = self._cluster.nodes.get(node)
        if key in self._deleted or self._again.get(key):
            return False
        if not isinstance(broker, V3BrokerNode):
            return key not in self._again
        return broker.context.image.topic_ids.get(key.topic) == self._topic_ids.get(key.topic)

    def _check_transition(self, key: TopicPartition, before: LeaderAndIsr, state: LeaderAndIsr) -> None:
        wrong = rules.leader_epoch_rises(before, state)
        if state.leader_epoch > before.leader_epoch + 1:
            wrong = f"leader epoch {state.leader_epoch} follows {before.leader_epoch}"
        self._report_if("LeaderEpochsRise", key, wrong)
        is_election = state.leader_epoch != before.leader_epoch and not state.is_unclean_leader
        if is_election and not set(state.isr) <= set(before.isr):
            self._report("ElectionAddsNoMember", key, f"ISR {state.isr} after {before.isr}")

    def _replica(self, broker: BrokerId, key: TopicPartition) -> Replica | None:
        node = self._cluster.nodes.get(broker)
        return node.context.replica_named(*key) if isinstance(node, V3BrokerNode) else None

    def _observe_command(self, node: NodeId, command: CommandCarriedOut) -> None:
        if command.error != "NONE":
            return
        incarnation = (node, self._cluster.incarnation_of(node))
        before = self._commanded.get(incarnation, NO_EPOCH)
        elected = self._controllers.get((paths.CONTROLLER, command.controller_epoch))
        if command.controller_epoch < before or elected != command.controller:
            wrong = (
                f"broker {node} obeys controller {command.controller} of epoch {command.controller_epoch} "
                f"after epoch {before}; elected was {elected}"
            )
            self._report("CommandsInOrder", None, wrong)
        self._commanded[incarnation] = max(before, command.controller_epoch)
        for name in command.partitions:
            topic, _, index = name.rpartition("-")
            self._touched[TopicPartition(topic, int(index))] = None
        broker = self._cluster.nodes.get(node)
        if command.is_init and isinstance(broker, V3BrokerNode):
            image = broker.context.image
            held = {str(image.name_of(key)) for key, _ in image.partitions()}
            logs = set(broker.context.storage.log_names())
            if held != set(command.partitions) or len(logs) > len(held):
                wrong = f"broker {node} holds {sorted(held)} with logs {sorted(logs)}, INIT names {command.partitions}"
                self._report("InitIsObeyed", None, wrong)

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _observe_role(self, node: NodeId, role: BecameLeader | BecameFollower) -> None:
        key, epoch = role.partition, role.leader_epoch
        if not self._is_present(node, key):  # Of a deleted partition until StopReplica arrives.
            return
        place = (node, self._cluster.incarnation_of(node), key)
        before = self._led.get(place, NO_EPOCH)
        self._led[place] = epoch
        self._touched[key] = None
        self._report_if("OneLeaderPerEpoch", key, rules.epoch_stays(before, epoch), f"broker {node} ")
        if isinstance(role, BecameFollower):
            return
        known = self.of(key)
        wrong = rules.one_leader(self._leaders, key, epoch, node)
        published = {state.leader for state in known.versions.values() if state.leader_epoch == epoch}
        self._report_if("OneLeaderPerEpoch", key, wrong)
        self._report_if("OneLeaderPerEpoch", key, rules.leads_by_record(published, epoch, node), f"broker {node} ")
        is_present = known.state is not None and known.state.leader_epoch == epoch
        wrong = rules.has_committed(role.log_end, known.committed) if is_present else ""
        if not wrong:
            return
        truth = self._truth.of(key)
        truth.tolerant = truth.tolerant and node not in known.short
        if truth.tolerant:
            self._report("LeaderCompleteness", key, f"leader {node} {wrong}")

    def check(self, node: NodeId) -> None:
        """After an event of a node: checks that node, and the leaders in the store, on the partitions it touched."""
        touched, self._touched = self._touched, {}
        for key in touched:
            known = self.of(key)
            if known.state is not None:
                self._check_known(node, key)
                for broker in dict.fromkeys((node, known.state.leader)):
                    self._check_leader(broker, key, known, known.state)

    def _check_known(self, broker: NodeId, key: TopicPartition) -> None:
        node = self._cluster.nodes.get(broker)
        if not isinstance(node, V3BrokerNode):
            return
        image = node.context.image
        place = TopicIdPartition(image.topic_ids.get(key.topic, ""), key.partition)
        state = image.partition(place)
        if state is None:
            self._known.pop((broker, place), None)
            return
        now = (self._cluster.incarnation_of(broker), state.leader_epoch, state.partition_epoch)
        before = self._known.setdefault((broker, place), now)
        self._known[broker, place] = now
        if now < before:
            wrong = f"broker {broker} goes back from version {before[2]} of epoch {before[1]} to {now[2]} of {now[1]}"
            self._report("BrokerStatesRise", key, wrong)

    def _check_leader(self, broker: NodeId, key: TopicPartition, known: Published, state: LeaderAndIsr) -> None:
        replica = self._replica(broker, key)
        leadership = None if replica is None else replica.leadership
        if replica is None or leadership is None or replica.key.topic_id != self._topic_ids.get(key.topic):
            return
        first = next(iter(known.versions.values()))
        if leadership.leader_epoch < first.leader_epoch:
            return  # Of a partition that was removed and added again, until StopReplica arrives.
        stored = known.versions.get(leadership.partition_epoch)
        isrs = [] if stored is None or stored.leader_epoch != leadership.leader_epoch else [stored.isr]
        wrong = rules.isr_by_record(isrs, leadership.partition_epoch, leadership.isr)
        self._report_if("LeaderUsesStoredIsr", key, wrong, f"leader {broker} ")
        if leadership.leader_epoch == state.leader_epoch:
            wrong = rules.waits_for_all(state.isr, leadership.maximal_isr)
            self._report_if("ReplicationQuorumSuperset", key, wrong, f"leader {broker} ")

    def lost(self, lost: dict[TopicPartition, int]) -> None:
        for key, count in lost.items():
            if count:
                self._truth.of(key).tolerant = False

    def check_everything(self) -> None:
        for broker in self._cluster.spec.broker_ids:
            self._touched = dict.fromkeys(self._partitions)
            self.check(broker)
