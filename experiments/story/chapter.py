"""A run as a story: what was done, which metadata records the controller wrote, what became of brokers and partitions.

The story is told from trace events in order of time, with the experiment's steps between them. Left out is what only
carries data on (appends, fetches, metadata that was applied); acknowledged records are counted up to the next thing
that happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.engines.port import Recovery, TraceEvent, recovery_of
from experiments.support.record_text import record_text, topic_names
from protocol.controller.metrics import alert_text
from protocol.ids import NO_LEADER, node_name
from protocol.messages.records import MetadataRecord

ACKS = {-1: "all", 0: "0", 1: "1"}


@dataclass(frozen=True, slots=True)
class Chapter:
    """A step of the experiment, in words, and how many trace events there were before it."""

    text: str
    begins_at: int


def tell(
    events: Sequence[TraceEvent], chapters: Sequence[Chapter] = (), records: Sequence[MetadataRecord] = ()
) -> list[str]:
    """The lines of the story: time in seconds, who, what. `records` is the metadata log, from its start."""
    lines = []
    acknowledged: dict[str, int] = {}
    topics = topic_names(records)
    open_chapters = list(reversed(chapters))
    for index, event in enumerate(events):
        while open_chapters and open_chapters[-1].begins_at <= index:
            lines += [*_counted(acknowledged), f"-- {open_chapters.pop().text}"]
        if event.trace.kind == "produced" and event.trace.detail["error"] == "NONE":
            key = f"{event.trace.partition} with acks={ACKS[int(str(event.trace.detail['acks']))]}"
            acknowledged[key] = acknowledged.get(key, 0) + 1
            continue
        for text in [*_told(event), *_written(event, records, topics)]:
            lines += _counted(acknowledged)
            lines.append(f"{event.time_ms / 1000:10.3f}  {node_name(event.node):<15}  {text}")
    return [*lines, *_counted(acknowledged), *(f"-- {chapter.text}" for chapter in reversed(open_chapters))]


def _written(event: TraceEvent, records: Sequence[MetadataRecord], topics: Mapping[str, str]) -> Iterator[str]:
    """The records of a batch that the controller committed."""
    if event.trace.kind == "committed":
        begin, end = (int(str(event.trace.detail[name])) for name in ("base_offset", "end_offset"))
        for offset, record in enumerate(records[begin:end], begin):
            yield f"  {offset:>4}  {record_text(record, topics)}"


def _counted(acknowledged: dict[str, int]) -> Iterator[str]:
    """Tells of the records acknowledged since this was last asked, and forgets them."""
    for key, count in acknowledged.items():
        yield f"{'':10}  {'':<15}  {count} {'record' if count == 1 else 'records'} acknowledged in {key}"
    acknowledged.clear()


def _told(event: TraceEvent) -> Iterator[str]:
    kind, name, detail = event.trace.kind, event.trace.partition, event.trace.detail
    if kind == "broker_registration":
        yield f"broker {detail['broker']} (epoch {detail['broker_epoch']}): {_standing(detail)}"
    elif kind == "session_expired":
        yield f"the session of broker {detail['broker']} has ended"
    elif kind == "controller_started":
        yield f"started with {detail['next_offset']} metadata records"
    elif kind == "broker_state":
        yield str(detail["state"])
    elif kind == "topic_deleted":
        yield f"topic {detail['topic']} deleted"
    elif kind == "partition_removed":
        yield f"{name} removed"
    elif kind == "broker_unregistered":
        yield f"broker {detail['broker']} unregistered"
    elif kind == "feature_level":
        yield f"{detail['feature']} is at level {detail['level']}"
    elif kind == "partition":
        yield f"{name}: {_state(detail)}"
    elif kind == "recovery_began":
        required = f", {_brokers(detail['required'])} must answer" if detail["required"] else ""
        yield f"asks {_brokers(detail['asked'])} for the logs of {name}: {detail['mode']} recovery{required}"
    elif kind == "recovery_cancelled":
        yield f"the recovery of {name} is cancelled"
    elif kind == "recovery":
        yield f"{name}: {recovery_text(recovery_of(event))}"
    elif kind == "alert":
        yield f"ALERT: {alert_text(name, detail)}"
    elif kind == "became_leader":
        ends = f"log end {detail['log_end']}, high watermark {detail['high_watermark']}"
        yield f"leads {name} in epoch {detail['leader_epoch']}, {ends}"
    elif kind == "became_follower":
        yield f"follows broker {detail['leader']} for {name} in epoch {detail['leader_epoch']}"
    elif kind == "truncated":
        yield f"truncates {name} from {detail['log_end']} to {detail['to_offset']}"
    elif kind == "data_loss_routine" and detail["duration_ms"]:
        yield f"runs its data-loss routine for {name}, log end {detail['log_end']}: {detail['duration_ms'] / 1000:g} s"
    elif kind == "isr_proposed":
        yield f"proposes ISR {_brokers(detail['isr'])} for {name}"
    elif kind == "produced":
        yield f"a record for {name} was refused: {detail['error']}"


def recovery_text(recovery: Recovery) -> str:
    """A recovery in words: who answered with what, who did not, who won and why."""
    parts = [f"broker {broker} has epoch {epoch}, end {end}" for broker, _, epoch, end in recovery.answers]
    parts += [f"broker {broker} is silent" for broker in recovery.silent]
    parts += [f"broker {broker} is absent" for broker in recovery.absent]
    return f"{'; '.join(parts)}. Broker {recovery.leader} is elected: {recovery.reason}"


def _standing(detail: Mapping[str, Any]) -> str:
    if detail["fenced"]:
        return "fenced"
    return "shutting down" if detail["in_controlled_shutdown"] else "unfenced"


def _state(detail: Mapping[str, Any]) -> str:
    leader = "no leader" if detail["leader"] == NO_LEADER else f"leader {detail['leader']}"
    parts = [f"{leader}, epochs {detail['leader_epoch']}/{detail['partition_epoch']}", f"ISR {_brokers(detail['isr'])}"]
    if detail["elr"]:
        parts.append(f"ELR {_brokers(detail['elr'])}")
    if detail["last_known_elr"]:
        parts.append(f"last known ELR {_brokers(detail['last_known_elr'])}")
    if detail["last_known_leader"] != NO_LEADER:
        parts.append(f"last known leader {detail['last_known_leader']}")
    if detail["recovering"]:
        parts.append("recovering")
    return ", ".join(parts)


def _brokers(brokers: Iterable[int]) -> str:
    return "{" + " ".join(str(broker) for broker in brokers) + "}"
