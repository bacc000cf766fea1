"""Where two runs differ first: in any event, in the state of a partition, in what a client was answered.

Two runs of one plan are the same, event by event, until something makes a difference: a guard that a mutant lacks, or a
rule that only one generation has. Generations differ in their first metadata records already, so the other two
differences say more there: they compare the states that a partition goes through (leader, ISR, ELR, recovering), and
the outcomes of produce commands, each in their order and without times, epochs and offsets. A run that ends at a
violation is compared up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

from experiments.explorer.run import Run, RunEvent
from protocol.events.controller import PartitionChanged
from protocol.events.node import ProduceCompleted
from protocol.ids import node_name

Compared = Callable[[RunEvent], tuple[Hashable, Hashable] | None]
"""The subject of an event and its value; None for events that are not compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A first difference. `what` names what was compared; `first` and `second` are the events of the two runs that
    differ, -1 where a run has no further one; `text` is both in words.
    """

    what: str
    first: int
    second: int
    text: str

    def document(self) -> dict[str, object]:
        return {"what": self.what, "events": [self.first, self.second], "text": self.text}


def differences(first: Run, second: Run) -> list[Difference]:
    """The first differences of two runs, of each kind at most one."""
    kinds = {"event": _whole, "partition state": _state, "outcome of a client": _outcome}
    found = (_first_difference(what, first, second, compared) for what, compared in kinds.items())
    return [each for each in found if each is not None]


def _whole(event: RunEvent) -> tuple[Hashable, Hashable] | None:
    """Every event but violations, which are findings on a run and no part of it."""
    if event.role == "violation":
        return None
    return None, (event.time_ms, event.node, event.role, event.kind, repr(event.fields))


def _state(event: RunEvent) -> tuple[Hashable, Hashable] | None:
    if event.kind != PartitionChanged.kind or event.role != "trace":
        return None
    isr, elr = (frozenset(cast("list[int]", event.fields[name])) for name in ("isr", "elr"))
    return event.partitions, (event.fields["leader"], isr, elr, event.fields["recovering"])


def _outcome(event: RunEvent) -> tuple[Hashable, Hashable] | None:
    if event.kind != ProduceCompleted.kind or event.role != "trace":
        return None
    return event.partitions, (event.fields["error"], event.fields["unknown"])


def _first_difference(what: str, first: Run, second: Run, compared: Compared) -> Difference | None:
    """The earliest place at which the sequences of one subject (a partition, or the whole run) differ."""
    sequences = [_by_subject(run.events, compared) for run in (first, second)]
    found = []
    for subject in dict.fromkeys([*sequences[0], *sequences[1]]):
        pairs = zip_longest(*(sequence.get(subject, []) for sequence in sequences), fillvalue=(None, -1))
        one, other = next(((a[1], b[1]) for a, b in pairs if a[0] != b[0]), (-1, -1))
        stopped = (one < 0 and _ends_in_violation(first)) or (other < 0 and _ends_in_violation(second))
        if (one, other) != (-1, -1) and not stopped:
            times = [run.events[index].time_ms for run, index in ((first, one), (second, other)) if index >= 0]
            found.append((min(times), one, other))
    if not found:
        return None
    _, one, other = min(found)
    return Difference(what, one, other, f"{_words(first, one)}; {_words(second, other)}")


def _ends_in_violation(run: Run) -> bool:
    """Whether the last event is a violation: a run of the fuzz stops there."""
    return bool(run.events) and run.events[-1].role == "violation"


def _by_subject(events: Sequence[RunEvent], compared: Compared) -> dict[Hashable, list[tuple[Hashable, int]]]:
    """By subject: pairs of a value and the index of its event; a state that repeats the one before is left out."""
    found: dict[Hashable, list[tuple[Hashable, int]]] = {}
    for index, event in enumerate(events):
        if (item := compared(event)) is not None:
            subject, value = item
            before = found.setdefault(subject, [])
            if compared is not _state or not before or before[-1][0] != value:
                before.append((value, index))
    return found


def _words(run: Run, index: int) -> str:
    if index < 0:
        return f"{run.title}: no further one"
    event = run.events[index]
    return f"{run.title}: {event.time_ms / 1000:.3f} s, {node_name(event.node)}: {event.text or event.kind}"
