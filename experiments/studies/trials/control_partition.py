"""A partition of a control (`control.py`): the controller's view of it, and what its replicas have."""

from __future__ import annotations

from experiments.studies.design.placement import Simulated
from experiments.studies.trials.decisions import Decisions
from protocol.ids import NodeId, TimeMs


class ControlPartition:
    """`places`: of the brokers of its replicas, of which there are `factor` while none moves. `running`, `behind`: sets
    of the replicas (bit p for place p) whose brokers run or have to catch up. `logs`: up to where each has all that was
    acknowledged, `flushed`: and has it on the disk; `appended`: (time, number) of what is not. `since_ms`: since when a
    write would wait; -1: it would not. `copies`: how many partitions of a whole cluster it stands for."""

    __slots__ = (
        *("acked", "appended", "behind", "copies", "decisions", "factor", "flushed", "logs", "places", "running"),
        *("since_ms", "view", "waits_for_isr"),
    )

    def __init__(self, partition: Simulated, decisions: Decisions, copies: int) -> None:
        self.decisions, self.view, self.copies = decisions, decisions.whole, copies
        self.waits_for_isr = partition.acks == "all"
        self.places = {broker: place for place, broker in enumerate(partition.replicas)}
        self.factor = len(partition.replicas)
        self.running, self.behind = (1 << self.factor) - 1, 0
        self.since_ms = -1
        self.forget()

    def forget(self) -> None:
        """All replicas have all that was acknowledged, and nothing is on the disk."""
        count = self.decisions.places
        self.acked = 1
        self.logs, self.flushed = [1] * count, [0] * count
        self.appended: list[tuple[TimeMs, int]] = []

    def durable(self, oldest_ms: float) -> int:
        """The last number that was appended by then."""
        found = 0
        for at_ms, number in self.appended:
            if at_ms <= oldest_ms and number > found:
                found = number
        return found

    def cut(self, log: int) -> None:
        """What replicas have beyond the leader's log is not acknowledged any more."""
        self.acked = log
        self.logs = [min(log, each) for each in self.logs]
        self.flushed = [min(log, each) for each in self.flushed]
        self.appended = [each for each in self.appended if each[1] <= log]

    def lose(self, place: int, kind: str, oldest_ms: float) -> None:
        """What a failure does to the log of a replica. `oldest_ms`: up to when appended records have been written back,
        minus infinity if none are."""
        logs, flushed = self.logs, self.flushed
        if kind == "clean":
            flushed[place] = logs[place]
        elif kind == "disk":
            logs[place] = flushed[place] = 0
        elif kind == "lossy":
            logs[place] = min(logs[place], max(flushed[place], self.durable(oldest_ms)))

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        """The brokers of the assignment, in its order, in a move with the one that leaves."""
        brokers = {place: broker for broker, place in self.places.items()}
        return tuple([brokers[place] for place in self.view.state.replicas])

    def begin_move(self, joining: NodeId, runs: bool, is_behind: bool) -> None:
        """Gives a broker, which has nothing yet, the place that is free."""
        (place,) = set(range(self.decisions.places)).difference(self.places.values())
        self.places[joining] = place
        self.running |= runs << place
        self.behind |= is_behind << place
        self.logs[place] = self.flushed[place] = 0

    def end_moves(self) -> list[NodeId]:
        """Takes their places from brokers that have left the assignment, and returns these."""
        left = [broker for broker, place in self.places.items() if place not in self.view.state.replicas]
        for broker in left:
            freed = ~(1 << self.places.pop(broker))
            self.running &= freed
            self.behind &= freed
        return left
