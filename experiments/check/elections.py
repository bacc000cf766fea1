"""The elections of a run, and which of them has lost which acknowledged records.

A leader makes its log the partition's: what it lacks is gone as soon as another replica follows it. So records are
lost by the first election after they were appended whose leader had a log that ends at or before their offsets.

**When records were appended.** A leader appends from the end that its log had when it began its epoch. Of several
epochs in which a leader has appended at an offset, a record belongs to the last one that began before it was
acknowledged. Times of different nodes are compared here, and only here; an epoch lasts much longer than clocks of one
site differ.

**Where no election has a shorter log**, a leader may have had others' records at these offsets (a deposed leader that
is elected again brings back a log with another past). Then the first election after the append that was not clean is
named, as the probable one; without any, none is.

An election is `isr` or `elr` if its leader was a member; `recovery` if the controller has asked the replicas for their
logs (KIP-966); `unclean` if it has elected one without asking. What the events do not show is `unknown`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from experiments.check.history import ACKS_OF, NO_TIME, Ended, Invoked, Operation
from experiments.check.losses import Acks, Losses, LostRange
from experiments.check.store_changes import partition_changed
from experiments.engines.port import TraceEvent
from experiments.support.intervals import merged
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced, RecordsAppended
from protocol.events.controller import PartitionChanged, RecoveryDecided
from protocol.events.host import IncarnationEnded
from protocol.events.store import StoreChanged
from protocol.ids import NO_EPOCH, BrokerId, Epoch, NodeId, Offset, TimeMs, TopicPartition

Kind = Literal["isr", "elr", "unclean", "recovery", "unknown"]
_UNKNOWN: Kind = "unknown"
_WORDS: Mapping[Kind, str] = {
    "isr": "a clean election from the ISR",
    "elr": "a clean election from the ELR",
    "unclean": "an unclean election",
    "recovery": "an unclean recovery",
    "unknown": "an election of a kind that the recording does not show",
}


@dataclass(frozen=True, slots=True)
class Election:
    """An election: the leader began its epoch with a log that ended at `log_end`, where `committed` is the highest high
    watermark of earlier epochs and `appended` the highest log end; it has appended up to `end`. `strategy` and `reason`
    are those of a recovery. `disk` is what the leader's disk had lost last, and when, empty where nothing is known of
    that.
    """

    partition: TopicPartition
    leader_epoch: Epoch
    leader: BrokerId
    time_ms: TimeMs
    kind: Kind
    log_end: Offset
    committed: Offset = 0
    appended: Offset = 0
    end: Offset = 0
    strategy: str = ""
    reason: str = ""
    disk: str = ""
    disk_ms: TimeMs = 0

    @property
    def lacked(self) -> int:
        """How many committed records the leader's log lacked, by offsets."""
        return max(0, self.committed - self.log_end)

    def words(self, when: str) -> str:
        """The election in words; `when` is its time."""
        kind = _WORDS[self.kind]
        if self.kind == "recovery":
            kind += f" ({self.strategy}: {self.reason})"
        ends = f"its log ended at {self.log_end}, the high watermark had been {self.committed}"
        lacks = f" and the log end {self.appended}" if self.appended > self.committed else ""
        disk = f"; its disk had lost: {self.disk}" if self.disk else ""
        return f"{when}: broker {self.leader} in epoch {self.leader_epoch}, {kind}; {ends}{lacks}{disk}"


@dataclass(frozen=True, slots=True)
class LostBy:
    """Acknowledged records that an election has lost (None: no election explains it), as ranges of first and last
    offset. `is_certain`: the leader's log ended before them.
    """

    partition: TopicPartition
    acks: Acks
    offsets: tuple[tuple[Offset, Offset], ...]
    election: Election | None
    is_certain: bool = True

    @property
    def records(self) -> int:
        return sum(last - first + 1 for first, last in self.offsets)


@dataclass(slots=True)
class _Reign:
    """What the events show of a leader epoch: who began it with which log end, and up to where it has appended."""

    leader: NodeId
    time_ms: TimeMs
    log_end: Offset
    disk: tuple[str, TimeMs]
    appended: Offset = 0
    committed: Offset = 0


@dataclass(slots=True)
class ElectionLog:
    """Call `observe` with each event of a recording, in order; then `elections` has the elections by partition, in the
    order of leader epochs. An election whose leader has not reported that it leads is missing.
    """

    _reigns: dict[TopicPartition, dict[Epoch, _Reign]] = field(default_factory=lambda: defaultdict(dict))
    _states: dict[TopicPartition, dict[Epoch, tuple[TimeMs, PartitionChanged]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _decided: dict[tuple[TopicPartition, Epoch], RecoveryDecided] = field(default_factory=dict)
    _disks: dict[NodeId, tuple[str, TimeMs]] = field(default_factory=dict)

    def observe(self, event: TraceEvent) -> None:
        match event.trace:
            case BecameLeader(partition=name, leader_epoch=epoch, log_end=end):
                disk = self._disks.get(event.node, ("", 0))
                self._reigns[name].setdefault(epoch, _Reign(event.node, event.time_ms, end, disk, end))
            case RecordsAppended(partition=name, leader_epoch=epoch, log_end=end):
                if (reign := self._reigns[name].get(epoch)) is not None:
                    reign.appended = max(reign.appended, end)
            case HighWatermarkAdvanced(partition=name, leader_epoch=epoch, high_watermark=mark):
                if (reign := self._reigns[name].get(epoch)) is not None:
                    reign.committed = max(reign.committed, mark)
            case PartitionChanged(partition=name, partition_epoch=epoch) as state:
                self._states[name].setdefault(epoch, (event.time_ms, state))
            case StoreChanged() as change if (stored := partition_changed(change)) is not None:
                self._states[stored.partition].setdefault(stored.partition_epoch, (event.time_ms, stored))
            case RecoveryDecided(partition=name, leader_epoch=epoch) as decided:
                self._decided[name, epoch] = decided
            case IncarnationEnded(loss=loss) if loss != "none":
                self._disks[event.node] = loss, event.time_ms

    def elections(self) -> dict[TopicPartition, list[Election]]:
        return {name: [self._election(name, epoch) for epoch in sorted(of)] for name, of in self._reigns.items()}

    def _election(self, name: TopicPartition, epoch: Epoch) -> Election:
        reign = self._reigns[name][epoch]
        before = [it for other, it in self._reigns[name].items() if other < epoch]
        states = sorted(self._states[name].items())
        at = next((i for i, (_, (_, it)) in enumerate(states) if it.leader_epoch == epoch), None)
        time_ms, kind, decided = reign.time_ms, _UNKNOWN, None
        if at is not None and at > 0:
            time_ms, state = states[at][1]
            former = states[at - 1][1][1]
            decided = self._decided.get((name, former.leader_epoch))
            decided = decided if decided is not None and decided.leader == state.leader else None
            kind = kind_of(former, state, decided is not None)
        return Election(
            partition=name,
            leader_epoch=epoch,
            leader=reign.leader,
            time_ms=time_ms,
            kind=kind,
            log_end=reign.log_end,
            committed=max((it.committed for it in before), default=0),
            appended=max((it.appended for it in before), default=0),
            end=reign.appended,
            strategy="" if decided is None else decided.mode,
            reason="" if decided is None else decided.reason,
            disk=reign.disk[0],
            disk_ms=reign.disk[1],
        )


def kind_of(former: PartitionChanged, state: PartitionChanged, is_recovered: bool) -> Kind:
    """The kind of the election that has led from one state of a partition to the next."""
    if is_recovered:
        return "recovery"
    is_member = state.leader in former.isr
    if state.recovering and not (former.recovering and is_member):
        return "unclean"
    if is_member:
        return "isr"
    return "elr" if state.leader in former.elr else "unknown"


def lost_by(lost: Iterable[LostRange], elections: Mapping[TopicPartition, Sequence[Election]]) -> list[LostBy]:
    """Which election has lost which records, in the order of partitions and elections. `elections` are those of each
    partition in the order of their epochs.
    """
    found: dict[tuple[TopicPartition, Acks, Epoch, bool], list[range]] = defaultdict(list)
    named: dict[tuple[TopicPartition, Epoch], Election] = {}
    for part in lost:
        known = elections.get(part.partition, ())
        named |= {(part.partition, it.leader_epoch): it for it in known}
        for offset in range(part.first, part.first + part.size):
            election, is_certain = cause_of(offset, part.at_ms, known)
            epoch = NO_EPOCH if election is None else election.leader_epoch
            _extend(found[part.partition, part.acks, epoch, is_certain], offset)
    return [
        LostBy(
            partition=name,
            acks=acks,
            offsets=tuple((first, stop - 1) for first, stop in merged((each.start, each.stop) for each in parts)),
            election=named.get((name, epoch)),
            is_certain=is_certain,
        )
        for (name, acks, epoch, is_certain), parts in sorted(found.items())
    ]


def cause_of(offset: Offset, at_ms: TimeMs, elections: Sequence[Election]) -> tuple[Election | None, bool]:
    """The election that has lost a record that was acknowledged at this offset, and whether that is certain."""
    covering = [it for it in elections if it.log_end <= offset < it.end]
    before = [it for it in covering if at_ms != NO_TIME and it.time_ms <= at_ms]
    written = (before or [*covering[:1]])[-1:]
    epoch = written[0].leader_epoch if written else NO_EPOCH
    later = [it for it in elections if it.leader_epoch > epoch]
    shorter = next((it for it in later if it.log_end <= offset), None)
    if shorter is not None:
        return shorter, bool(written) and (len(covering) == 1 or bool(before))
    return next((it for it in later if it.kind in ("unclean", "recovery")), None), False


def lost_so_far(operations: Iterable[Operation], elections: Mapping[TopicPartition, Sequence[Election]]) -> Losses:
    """The acknowledged records that elections have lost by now, where the final logs are not known."""
    found, sends = Losses(), dict[int, tuple[TopicPartition, int]]()
    for operation in operations:
        if isinstance(operation, Invoked):
            sends[operation.send] = operation.partition, operation.size
        if not isinstance(operation, Ended) or operation.send not in sends:
            continue
        name, left = sends.pop(operation.send)
        if left > operation.size:
            sends[operation.send] = name, left - operation.size
        acks = ACKS_OF.get(operation.result)
        ends = [it.log_end for it in elections.get(name, ())]
        if acks is None or operation.offset + operation.size <= min(ends, default=0):
            continue
        for offset in range(operation.offset, operation.offset + operation.size):
            _, is_certain = cause_of(offset, operation.at_ms, elections[name])
            if is_certain:
                found.add_lost(LostRange(name, acks, offset, 1, operation.at_ms))
    return found


def _extend(parts: list[range], offset: Offset) -> None:
    if parts and parts[-1].stop == offset:
        parts[-1] = range(parts[-1].start, offset + 1)
    else:
        parts.append(range(offset, offset + 1))
