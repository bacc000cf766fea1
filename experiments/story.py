"""A run as a story: what happened to brokers, partitions and records, one line each, in order of time.

The story is told from trace events. Left out is what only carries data on (appends, fetches, metadata that was
applied); acknowledged records are counted up to the next thing that happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.engine import TraceEvent
from protocol.ids import NO_LEADER, node_name

ACKS = {-1: "all", 0: "0", 1: "1"}


def tell(events: Sequence[TraceEvent]) -> list[str]:
    """The lines of the story: time in seconds, who, what."""
    lines = []
    acknowledged: dict[str, int] = {}
    for event in events:
        if event.trace.kind == "produced" and event.trace.detail["error"] == "NONE":
            key = f"{event.trace.partition} with acks={ACKS[int(str(event.trace.detail['acks']))]}"
            acknowledged[key] = acknowledged.get(key, 0) + 1
            continue
        for text in _told(event):
            lines += _counted(acknowledged)
            lines.append(f"{event.time_ms / 1000:10.3f}  {node_name(event.node):<15}  {text}")
    return [*lines, *_counted(acknowledged)]


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
    elif kind == "partition":
        yield f"{name}: {_state(detail)}"
    elif kind == "became_leader":
        ends = f"log end {detail['log_end']}, high watermark {detail['high_watermark']}"
        yield f"leads {name} in epoch {detail['leader_epoch']}, {ends}"
    elif kind == "became_follower":
        yield f"follows broker {detail['leader']} for {name} in epoch {detail['leader_epoch']}"
    elif kind == "truncated":
        yield f"truncates {name} from {detail['log_end']} to {detail['to_offset']}"
    elif kind == "isr_proposed":
        yield f"proposes ISR {_brokers(detail['isr'])} for {name}"
    elif kind == "produced":
        yield f"a record for {name} was refused: {detail['error']}"


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
