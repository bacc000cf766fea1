"""The explorer's page: one self-contained HTML file that loads nothing.

The table of the story is in the file as HTML, so that a browser without JavaScript shows it. The scripts are inlined in
the order of `SCRIPTS` into one scope.

The data are columns of small numbers and tables of what they stand for, as compressed JSON. What repeats (kinds, sets
of partitions, names of fields) is stored once and referred to by number, times as differences.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from experiments.explorer.difference import Difference
from experiments.explorer.run import Run, RunEvent, StoryRow
from experiments.support.errors import InputError
from experiments.support.templates import templates
from protocol.events.registry import KINDS
from protocol.ids import is_broker, is_client, is_controller, node_name
from protocol.messages.base import Message

FOLDER = Path(__file__).parent
DIAGRAM = ("data.js", "causality.js", "scale.js", "states.js", "shapes.js", "draw.js", "panel.js", "app.js")
"""The scripts of the diagram, for any page that has its elements (`diagram`)."""
SCRIPTS = (*DIAGRAM, "open.js")
MAX_STORY_ROWS = 5_000
"""Lines of the story in the file; of a longer story the last ones, where runs end in what they show."""
CHUNK = 100
NO_SUMMARY = Markup("")


def write_page(
    path: Path, run: Run, other: Run | None = None, found: Sequence[Difference] = (), summary: Markup = NO_SUMMARY
) -> None:
    """Writes the page. InputError where the file cannot be written."""
    text = render_page(run, other, found, summary)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("--html", "", f"{path}: {error.strerror}", "a file that can be written") from error


def render_page(
    run: Run, other: Run | None = None, found: Sequence[Difference] = (), summary: Markup = NO_SUMMARY
) -> str:
    """The page of one run, or of two with their first differences, as HTML; `summary` goes above the diagram."""
    environment = templates(FOLDER)
    environment.filters |= {"clock": _clock, "node_name": node_name}
    runs = [run] if other is None else [run, other]
    document = {"runs": [columns(each) for each in runs], "differences": [each.document() for each in found]}
    return environment.get_template("page.html.j2").render(
        runs=runs,
        stories=[_chunks(each.story) for each in runs],
        left_out=[max(0, len(each.story) - MAX_STORY_ROWS) for each in runs],
        differences=found,
        summary=summary,
        data=Markup(packed(document)),
        style=style(),
        script=script(SCRIPTS),
    )


def diagram() -> Markup:
    """The elements of the diagram of one run, for a page of another package."""
    return Markup(templates(FOLDER).get_template("diagram.html.j2").render(differences=()))


def style() -> Markup:
    """The style of the explorer's pages."""
    return Markup((FOLDER / "page.css").read_text(encoding="utf-8"))


def script(names: Sequence[str] = DIAGRAM) -> Markup:
    """These scripts of the explorer, in one scope."""
    return Markup("\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names))


def _clock(time_ms: int) -> str:
    """A time as the diagram writes it: `12.345 s`, from an hour on `3 d 04:05:06.789`."""
    if time_ms < 3_600_000:
        return f"{time_ms / 1000:.3f} s"
    rest, hours = time_ms % 3_600_000, time_ms // 3_600_000
    clock = f"{hours % 24:02}:{rest // 60_000:02}:{rest % 60_000 // 1000:02}.{rest % 1000:03}"
    return f"{hours // 24} d {clock}" if hours >= 24 else clock


def _chunks(story: Sequence[StoryRow]) -> list[list[StoryRow]]:
    """The last rows of a story, in pieces that a browser lays out one by one."""
    rows = list(story[-MAX_STORY_ROWS:])
    return [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]


GROUPS = {
    "data": "Produce and fetch",
    "producers": "Produce and fetch",
    "quorum": "Metadata quorum",
    "metadata_batch": "Metadata quorum",
    "control": "Brokers and ISR",
    "recovery": "Unclean recovery",
}
"""Groups of messages by their module in `protocol/messages`; all others are administration."""
OTHER_PROTOCOLS = "Kafka's protocol"
EMITTERS = {
    "broker": "Broker events",
    "controller": "Controller events",
    "quorum": "Quorum events",
    "client": "Client events",
}
"""Groups of trace events by their module in `protocol/events`; all others are of the host."""


class _Table(dict[Hashable, int]):
    """The number of each distinct value, in the order in which they first occurred."""

    def __missing__(self, value: Hashable) -> int:
        self[value] = len(self)
        return self[value]


def group_of(event: RunEvent) -> str:
    """The group of an event's kind, by which the page colours and filters."""
    if event.role in ("send", "receive"):
        model = Message.REGISTRY.get(event.kind)
        if model is None:
            return OTHER_PROTOCOLS
        return GROUPS.get(model.__module__.rpartition(".")[2], "Administration")
    if event.role == "trace":
        return EMITTERS.get(KINDS[event.kind].__module__.rpartition(".")[2], "Node events")
    return {"timer": "Timers", "change": "Experiment", "violation": "Violations"}[event.role]


def columns(run: Run) -> dict[str, object]:
    """The run as JSON has it; `data.js` describes the columns where it reads them."""
    kinds, sets, shapes, partitions = _Table(), _Table(), _Table(), _Table()
    lanes = {node: lane for lane, node in enumerate(run.nodes)}
    events = run.events
    return {
        "title": run.title,
        "facts": run.facts,
        "notes": run.notes,
        "nodes": [{"id": node, "name": node_name(node), "type": _type(node)} for node in run.nodes],
        "time": [after - before for before, after in pairwise((0, *(event.time_ms for event in events)))],
        "node": [lanes[event.node] for event in events],
        "kind": [kinds[event.role, event.kind, group_of(event)] for event in events],
        "about": [sets[tuple(partitions[name] for name in event.partitions)] for event in events],
        "cause": [index - event.cause if event.cause >= 0 else 0 for index, event in enumerate(events)],
        "shape": [shapes[tuple(event.fields)] for event in events],
        "values": [list(event.fields.values()) for event in events],
        "text": ["" if event.role in ("send", "receive") else event.text for event in events],
        "headings": run.headings,
        "kinds": list(kinds),
        "sets": list(sets),
        "shapes": list(shapes),
        "partitions": list(partitions),
    }


def packed(document: object) -> str:
    """A document as JSON, compressed by gzip (with no time in it), in base64."""
    text = json.dumps(document, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _type(node: int) -> str:
    kinds = {"broker": is_broker, "controller": is_controller, "client": is_client}
    return next((name for name, is_of_kind in kinds.items() if is_of_kind(node)), "manager")
