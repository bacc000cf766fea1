"""The answers in sentences, and in rows for a table: what stops, what has no leader, what may lose records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from experiments.studies.layouts.layout import Layout
from experiments.studies.whatif.answers import Answer, Question, TopicAnswer

COLUMNS = ("failure", "topics that refuse writes", "partitions refused", "without leader", "may lose records")
METHOD = (
    "The controller's own decisions, without rates and times: sessions of failed brokers have expired, and nothing"
    " else fails. A topic is stopped if any of its partitions refuses acks=all. Acknowledged records may be lost if the"
    " named number of failed brokers lose their page cache (or disk) and all of them return, in the worst order."
)
LEFT_OUT = (
    "Left out: the seconds until a session expires and a leader is elected, brokers that are cut off or slow,"
    " controllers that fail, load, and replicas that were behind and catch up meanwhile."
)
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One failure in words. `is_stopping`: it makes some topic refuse writes."""

    failure: str
    stopped: str
    refused: int
    leaderless: int
    may_lose: str
    is_stopping: bool


@dataclass(frozen=True, slots=True)
class _Kind:
    """How answers of a kind are called: the number of failures and what they are."""

    name: str
    none: str
    some: Callable[[int, int], str]


_KINDS = (
    _Kind("broker", "no single broker", lambda some, all_: f"{some} of {all_} single brokers"),
    _Kind("rack", "no rack", lambda some, all_: f"{some} of {all_} racks"),
    _Kind("pair", "no pair of brokers", lambda some, all_: f"{some} of {all_} pairs of brokers"),
    _Kind("racks", "no pair of racks", lambda some, all_: f"{some} of {all_} pairs of racks"),
    _Kind("three", "no three brokers", lambda some, all_: f"{some:,} of {all_:,} sets of three brokers"),
    _Kind("brokers", "no sequence of failures", lambda some, all_: f"{some} of {all_} sequences of failures"),
    _Kind(
        "rolling", "no step of the rolling restart", lambda some, all_: f"{some} of {all_} steps of the rolling restart"
    ),
)


def opening(question: Question) -> str:
    """The cluster, and how it is before anything fails."""
    layout, before = question.layout, question.before()
    racks = len(set(layout.racks.values()))
    within = f" in {_number(racks, 'rack')}" if racks else ""
    text = f"{_number(len(layout.brokers), 'broker')}{within}, "
    text += f"{_number(len(layout.topics), 'topic')}, {_number(layout.partitions, 'partition')} on "
    text += f"{_number(len(layout.replica_sets()), 'replica set')}"
    if question.down:
        text += f"; as described, broker {_some(sorted(map(str, question.down)))} is down"
    if before.stopped:
        text += f"; before any failure writes are refused by {_topics(before.stopped, layout)}"
    return f"{text}."


def sentences(answers: Sequence[Answer], layout: Layout) -> list[str]:
    """What each kind of failure stops, and what may lose acknowledged records."""
    found = []
    for kind in _KINDS:
        asked = [answer for answer in answers if answer.kind == kind.name]
        if asked:
            found.append(_stopping(kind, asked, layout))
    found.append(_losing(answers))
    return [text[0].upper() + text[1:] for text in found]


def _stopping(kind: _Kind, asked: Sequence[Answer], layout: Layout) -> str:
    stopping = sorted((answer for answer in asked if answer.stopped), key=_severity)
    if not stopping:
        return f"{kind.none} stops a topic."
    worst = stopping[0]
    every, some = ({_asked_as(answer) for answer in answers} for answers in (asked, stopping))
    if len(every) == 1 and kind.name not in ("rack", "racks"):
        return f"after {worst.name}: {_topics(worst.stopped, layout)} stopped."
    if len(some) <= _NAMED and kind.name in ("broker", "rack", "racks"):
        does = "stop" if kind.name == "racks" else "stops"
        return "; ".join(f"{answer.name} {does} {_topics(answer.stopped, layout)}" for answer in stopping) + "."
    verb = "stops" if len(some) == 1 else "stop"
    return (
        f"{kind.some(len(some), len(every))} {verb} a topic; at worst {worst.name}: {_topics(worst.stopped, layout)}."
    )


def _asked_as(answer: Answer) -> tuple[int, ...]:
    """The key of a failure among those of its kind; the two orders of a pair have one."""
    return tuple(sorted(answer.failed)) if answer.kind == "pair" else answer.failed


def _losing(answers: Sequence[Answer]) -> str:
    losing = sorted((answer for answer in answers if may_lose(answer)), key=_severity)
    if not losing:
        return "after none of these failures can acknowledged records be lost."
    named = [
        f"{answer.name} ({_some([topic.topic for topic in answer.topics if topic.may_lose])})" for answer in losing
    ]
    least = min(topic.losses for answer in losing for topic in answer.topics if topic.losses is not None)
    condition = f"if {_number(least, 'failed broker')} or more lose{'s' if least == 1 else ''} the page cache"
    if least == 0:
        condition = "even if no page cache is lost, by an unclean election"
    return f"acknowledged records may be lost, {condition}, after: {_some(named)}."


def rows(answers: Iterable[Answer]) -> list[Row]:
    """The failures that do anything, the worst first."""
    found = []
    for answer in sorted((each for each in answers if _has_effect(each)), key=_severity):
        losing = [topic.losses for topic in answer.topics if topic.losses is not None]
        count = may_lose(answer)
        found.append(
            Row(
                answer.name,
                _some([topic.topic for topic in answer.stopped]) or "none",
                sum(topic.partitions - topic.writable for topic in answer.topics),
                sum(topic.leaderless for topic in answer.topics),
                f"{_number(count, 'partition')} ({_number(min(losing), 'page cache')} lost)" if losing else "none",
                bool(answer.stopped),
            )
        )
    return found


def may_lose(answer: Answer) -> int:
    """The number of partitions that may lose acknowledged records."""
    return sum(topic.may_lose for topic in answer.topics)


def _has_effect(answer: Answer) -> bool:
    return bool(answer.stopped or may_lose(answer)) or any(topic.leaderless for topic in answer.topics)


def _severity(answer: Answer) -> tuple[int, int, int]:
    """Sorts the worst first."""
    refused = sum(topic.partitions - topic.writable for topic in answer.topics)
    return -len(answer.stopped), -refused, -may_lose(answer)


def _topics(stopped: Sequence[TopicAnswer], layout: Layout) -> str:
    names = _some([topic.topic for topic in stopped])
    return f"{len(stopped)} of {_number(len(layout.topics), 'topic')} ({names})"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
