"""Why a state changed: a sentence and the rule behind it, for each trace event that changes what a page shows.

A change of a partition is explained by its state before and after it (`explain_partition`): KIP-966 defines which
replicas the ELR takes in and when it is emptied, the leader is elected from ISR, then from ELR, and without either only
uncleanly. Other events have the sentence of the story (`Trace.sentence`), and a rule by their kind; elections and
voters of the quorum have sentences here only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from experiments.engines.port import TraceEvent
from protocol.events.base import Trace, braces
from protocol.events.broker import BrokerStateChanged, HighWatermarkAdvanced, IsrProposed
from protocol.events.controller import BrokerRegistered, PartitionChanged, PartitionRemoved, SessionExpired
from protocol.events.host import IncarnationBegan, IncarnationEnded
from protocol.events.node import ProduceCompleted
from protocol.events.quorum import QuorumRoleChanged, QuorumVotersChanged
from protocol.ids import NO_LEADER, BrokerId, Epoch, NodeId, TimeMs, TopicPartition, node_name

KEPT = 200
"""Sentences that a page can show, the newest."""
SHUTS_DOWN = "it shuts down in a controlled way"
KIP_966, ELECTION = "KIP-966", "leader election"
RULES = {
    "session_expired": "broker.session.timeout.ms: a broker without heartbeats for so long is fenced",
    "broker_registration": "KIP-631: fenced brokers neither lead nor join an ISR",
    "controller_started": "KIP-595: the leader of the metadata quorum is the active controller",
    "quorum_role": "KIP-595: a majority of the voters elects the leader of the metadata quorum",
    "quorum_voters": "KIP-853: voters join and leave one at a time",
    "became_leader": "KIP-101: each leader has an epoch of its own",
    "became_follower": "a follower fetches from its leader, in the leader's epoch",
    "truncated": "KIP-101: a follower truncates what the leader does not have",
    "isr_proposed": "KIP-497: the leader proposes, the controller decides",
    "recovery_began": "KIP-966, unclean recovery: the logs are compared before a leader is elected",
    "recovery": "KIP-966, unclean recovery: the longest log of the latest epoch",
    "alert": "KIP-966, alerts to the operator",
    "refused": "the node refuses what its state does not allow",
    "feature_level": "KIP-584: rules apply from the level of their feature on",
}
"""The rule behind an event, by its kind; other kinds that have a sentence show it without one."""
ERRORS = {
    "NOT_ENOUGH_REPLICAS": "acks=all needs an ISR of min.insync.replicas members; a smaller one refuses the write",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "the ISR fell below min.insync.replicas after the leader had appended",
    "ELECTION_NOT_NEEDED": "the election would not change the leader",
    "PREFERRED_LEADER_NOT_AVAILABLE": "the first replica of the assignment is not alive or not in ISR",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "no replica that may be elected is alive",
    "NO_REASSIGNMENT_IN_PROGRESS": "there is nothing to cancel",
    "INVALID_REPLICA_ASSIGNMENT": "the assignment names a broker that is not registered, or one twice",
    "INVALID_CONFIG": "the value is not allowed in this state",
    "REQUEST_TIMED_OUT": "no broker that could answer was reachable in time",
}
"""What an error code means for who has sent the request."""


def answer_text(error: str) -> str:
    """What an error code means, empty for none."""
    return f"{error}: {ERRORS.get(error, 'the cluster has refused it')}" if error else ""


@dataclass(frozen=True, slots=True)
class Explained:
    """A change in words. `rule` is why; empty where the sentence says it already."""

    time_ms: TimeMs
    node: NodeId
    text: str
    rule: str = ""
    partition: str = ""

    def document(self) -> dict[str, object]:
        return {"time_ms": self.time_ms, "node": node_name(self.node), "text": self.text, "rule": self.rule}


def explain_partition(
    before: PartitionChanged | None, after: PartitionChanged, reasons: Mapping[BrokerId, str]
) -> Iterator[tuple[str, str]]:
    """Pairs of a sentence and its rule about one change. `before` is None for a new partition; `reasons` says of
    brokers what was the last to happen to them, such as `its session ended`.
    """
    name = after.partition
    if before is None:
        yield f"{name} is created: leader {after.leader}, ISR {braces(after.isr)}, min ISR {after.min_isr}", ""
        return
    yield from _explain_isr(before, after, reasons)
    yield from _explain_elr(before, after)
    yield from _explain_leader(before, after)
    if before.recovering and not after.recovering:
        yield f"The leader of {name} has recovered from the unclean election", KIP_966
    if before.min_isr != after.min_isr:
        yield f"min ISR of {name} is {after.min_isr}", "min.insync.replicas, at most the replication factor"
    if before.replicas != after.replicas:
        change = f"{braces(before.replicas)} become {braces(after.replicas)}"
        yield f"The replicas of {name}: {change}", "KIP-455: a reassignment adds replicas first and removes then"


def _explain_isr(
    before: PartitionChanged, after: PartitionChanged, reasons: Mapping[BrokerId, str]
) -> Iterator[tuple[str, str]]:
    name, members = after.partition, f"ISR is {braces(after.isr)}"
    for broker in sorted({*before.isr} - {*after.isr}):
        why = reasons.get(broker, "it did not catch up with the leader in time")
        rule = "fenced brokers leave" if broker in reasons else "replica.lag.time.max.ms"
        yield f"Broker {broker} leaves the ISR of {name}, since {why}; {members}", rule
    for broker in sorted({*after.isr} - {*before.isr} - {after.leader}):
        rule = "KIP-497: a follower joins when it has fetched up to the high watermark and to the leader's epoch start"
        yield f"Broker {broker} joins the ISR of {name}: it has caught up; {members}", rule


def _explain_elr(before: PartitionChanged, after: PartitionChanged) -> Iterator[tuple[str, str]]:
    name = after.partition
    for broker in sorted({*after.elr} - {*before.elr}):
        what = f"it left an ISR below min ISR {after.min_isr} with all committed records"
        yield f"ELR keeps broker {broker} for {name}: {what}", KIP_966
    for broker in sorted({*before.elr} - {*after.elr}):
        if broker in after.isr:
            yield f"Broker {broker} leaves the ELR of {name}: it is in ISR", KIP_966
        elif broker in after.last_known_elr:
            unclean = after.recovering and not before.recovering
            what = "it came back without a clean shutdown, so that its disk may lack records"
            what = "the election was unclean, so that no log is known to have all records" if unclean else what
            yield f"Broker {broker} goes from ELR to last known ELR of {name}: {what}", KIP_966
        elif len(after.isr) >= after.min_isr:
            what = f"ISR has min ISR {after.min_isr} members, who may commit records that it lacks"
            yield f"ELR drops broker {broker} for {name}: {what}", KIP_966
        else:
            yield f"ELR drops broker {broker} for {name}: it is no replica that can be trusted any more", KIP_966
    if before.last_known_elr and not after.last_known_elr:
        yield f"Last known ELR of {name} is emptied: a leader has all that is left of the records", KIP_966


def _explain_leader(before: PartitionChanged, after: PartitionChanged) -> Iterator[tuple[str, str]]:
    name, leader, epoch = after.partition, after.leader, after.leader_epoch
    if leader == before.leader:
        return
    if leader == NO_LEADER:
        yield (
            f"{name} has no leader: no broker of ISR {braces(before.isr)} or ELR {braces(after.elr)} is alive",
            ELECTION,
        )
    elif after.recovering and not before.recovering:
        lacking = "was neither in ISR nor in ELR; acknowledged records that it lacks are lost"
        yield f"Broker {leader} leads {name} in epoch {epoch} after an unclean election: it {lacking}", ELECTION
    elif leader in before.isr:
        what = "the first live replica of the assignment that is in ISR, so it has every committed record"
        yield f"Broker {leader} leads {name} in epoch {epoch}: {what}", ELECTION
    elif leader in before.elr:
        yield f"Broker {leader} leads {name} in epoch {epoch}: ELR keeps it, so it has every committed record", KIP_966
    else:
        yield f"Broker {leader} leads {name} in epoch {epoch}", ELECTION


@dataclass(slots=True)
class Explainer:
    """Follows the trace events of a run. `sentences` are the newest, oldest first; `states` the last of each partition.
    High watermarks and acknowledgements that follow each other replace each other.
    """

    sentences: deque[Explained] = field(default_factory=lambda: deque(maxlen=KEPT))
    states: dict[TopicPartition, PartitionChanged] = field(default_factory=dict)
    _reasons: dict[BrokerId, str] = field(default_factory=dict)
    _epochs: dict[BrokerId, Epoch] = field(default_factory=dict)

    def add(self, event: TraceEvent) -> None:
        for text, rule in self._explain(event.trace):
            self.sentences.append(Explained(event.time_ms, event.node, text, rule))
        if isinstance(event.trace, HighWatermarkAdvanced | ProduceCompleted):
            self._count(event, event.trace)

    def _explain(self, trace: Trace) -> Iterator[tuple[str, str]]:
        match trace:
            case PartitionChanged():
                before = self.states.get(trace.partition)
                if before is None or before.partition_epoch < trace.partition_epoch:
                    self.states[trace.partition] = trace
                    yield from explain_partition(before, trace, self._reasons)
                return
            case PartitionRemoved():
                self.states.pop(trace.partition, None)
            case SessionExpired(broker=broker):
                self._reasons[broker] = "its session ended"
            case BrokerRegistered(broker=broker):
                self._note_registration(broker, trace)
            case BrokerStateChanged(broker=broker, state="shutting down"):
                self._reasons[broker] = SHUTS_DOWN
            case IncarnationBegan():
                yield "starts", "it recovers its logs from what its disk holds"
                return
            case IncarnationEnded(loss=loss, lost=lost):
                yield _ended(loss, lost), "what was not flushed is only in the page cache"
                return
            case IsrProposed(isr=isr):
                for broker in isr:
                    self._reasons.pop(broker, None)
        if sentence := trace.sentence() or _about_quorum(trace):
            yield sentence, RULES.get(trace.kind, "")

    def _note_registration(self, broker: BrokerId, trace: BrokerRegistered) -> None:
        is_new = self._epochs.get(broker, trace.broker_epoch) != trace.broker_epoch
        self._epochs[broker] = trace.broker_epoch
        if trace.in_controlled_shutdown:
            self._reasons[broker] = SHUTS_DOWN
        elif trace.fenced:
            self._reasons.setdefault(broker, "it was started again" if is_new else "it is fenced")
        else:
            self._reasons.pop(broker, None)

    def _count(self, event: TraceEvent, trace: HighWatermarkAdvanced | ProduceCompleted) -> None:
        if isinstance(trace, HighWatermarkAdvanced):
            text = f"The high watermark of {trace.partition} is {trace.high_watermark}"
            rule = "all members of ISR have the records below it, which consumers can read"
        elif trace.is_acknowledged:
            text, rule = f"Records of {trace.partition} are acknowledged, the last one at {trace.base_offset}", ""
        else:
            return
        kind = f"{trace.kind} {trace.partition}"
        recent = [place for place, it in enumerate(self.sentences) if it.partition == kind]
        if recent and recent[-1] >= len(self.sentences) - 4:
            del self.sentences[recent[-1]]
        self.sentences.append(Explained(event.time_ms, event.node, text, rule, kind))


def _about_quorum(trace: Trace) -> str:
    match trace:
        case QuorumVotersChanged(voters=voters):
            return f"The voters of the metadata quorum are {braces([int(it.partition(':')[0]) for it in voters])}"
        case QuorumRoleChanged(role="candidate", epoch=epoch):
            return f"stands for election as the leader of the quorum in epoch {epoch}"
    return ""


def _ended(loss: str, lost: tuple[tuple[TopicPartition, int], ...] | None) -> str:
    """The end of a process in words, with the records that its disk has lost; None where that is not known yet."""
    if loss == "all":
        return "is killed; its disk is replaced by an empty one"
    if lost is None:
        return f"is killed; what its disk loses ({loss}) is found at its next start"
    listed = ", ".join(f"{count} of {partition}" for partition, count in lost)
    return f"is killed; its disk loses {f'records: {listed}' if listed else 'nothing'}"
