"""The pictures of docs/generations.md: what a run of a shipped scenario did to its partition, drawn from the trace.

A picture has a row per broker, and a column per time at which the controller committed a state of the partition or the
experiment changed a node or a link. A cell has the role of the broker in that state. Times are not to scale: most of a
run is waiting for a session timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import cast

import altair as alt
import vl_convert

from experiments.check.engine import CheckedEngine
from experiments.explorer.run import Run, RunEvent
from experiments.scenarios.explored import run_explored
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.runner import Runner
from experiments.support.shipped import SCENARIOS
from protocol.ids import is_broker

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
DRAWN = ("last-replica-standing", "last-replica-standing-kip-497")
"""The scenarios that are drawn, each into a file of its name."""

ROLES = {"leader": "#009E73", "ISR": "#56B4E9", "ELR": "#E69F00", "last known ELR": "#CC79A7", "": "#E6E6E6"}
"""Roles of a broker and their colours (Okabe and Ito, 2008); the text in the cell says the same."""
CHANGES = {
    "cut": "broker {} is cut off",
    "healed": "broker {} is back",
    "exited": "broker {} ends",
    "crashed": "broker {} crashes",
    "started": "broker {} starts",
}
DOWN = {"exited", "crashed"}
HAPPENING, HIGH_WATERMARK = "what happens", "high watermark"
COLUMN, ROW = 104, 40


@dataclass(frozen=True, slots=True)
class Column:
    """A column: when, what the experiment did at that time (lines divided by |), the role of each broker, those whose
    process does not run, and the high watermark of the last leader at the end of that time.
    """

    time_ms: int
    what: str
    roles: Mapping[int, str]
    down: frozenset[int]
    high_watermark: int


def columns(run: Run) -> list[Column]:
    """The columns of a run of one partition, from the first state of it on."""
    brokers = [node for node in run.nodes if is_broker(node)]
    roles: dict[int, str] = {}
    down: set[int] = set()
    high_watermark = 0
    found: list[Column] = []
    for time_ms, group in groupby(run.events, lambda event: event.time_ms):
        events = list(group)
        states = [event for event in events if event.kind == "partition"]
        changes = [(event.kind, event.node) for event in events if event.role == "change" and is_broker(event.node)]
        leading = [event for event in events if event.kind in {"high_watermark", "became_leader"}]
        high_watermark = cast(int, leading[-1].fields["high_watermark"]) if leading else high_watermark
        down |= {node for kind, node in changes if kind in DOWN}
        down -= {node for kind, node in changes if kind == "started"}
        roles = _roles(states[-1], brokers) if states else roles
        if roles and (states or changes):
            found.append(Column(time_ms, _words(changes), roles, frozenset(down), high_watermark))
        elif found:
            found[-1] = replace(found[-1], high_watermark=high_watermark)
    return found


def _roles(state: RunEvent, brokers: Sequence[int]) -> dict[int, str]:
    fields = cast("Mapping[str, Sequence[int]]", state.fields)
    roles = dict.fromkeys(brokers, "")
    for role, name in (("last known ELR", "last_known_elr"), ("ELR", "elr"), ("ISR", "isr")):
        roles.update(dict.fromkeys(fields[name], role))
    leader = cast(int, state.fields["leader"])
    return roles | ({leader: "leader"} if leader in roles else {})


def _words(changes: Sequence[tuple[str, int]]) -> str:
    """What the experiment did: each kind of change to the broker that it names first."""
    first: dict[str, int] = {}
    for kind, node in changes:
        if kind in CHANGES:
            first.setdefault(kind, node)
    return "|".join(CHANGES[kind].format(node) for kind, node in first.items())


def chart(columns: Sequence[Column]) -> dict[str, object]:
    rows: list[dict[str, str]] = []
    for number, column in enumerate(columns):
        label = f"{number}|{column.time_ms / 1000:.2f} s"
        rows.append({"column": label, "row": HAPPENING, "text": column.what})
        for broker, role in column.roles.items():
            text = ", ".join(filter(None, (role, "down" if broker in column.down else "")))
            rows.append({"column": label, "row": f"broker {broker}", "role": role, "text": text})
        rows.append({"column": label, "row": HIGH_WATERMARK, "text": str(column.high_watermark)})
    axis = alt.Axis(labelExpr="split(datum.label, '|')[1]", labelAngle=0, orient="top", title=None)
    order = [HAPPENING, *(f"broker {broker}" for broker in columns[0].roles), HIGH_WATERMARK]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("column:N", sort=None, axis=axis), y=alt.Y("row:N", sort=order, axis=alt.Axis(title=None))
    )
    scale = alt.Scale(domain=list(ROLES), range=list(ROLES.values()))
    cells = base.mark_rect(stroke="white").transform_filter("isString(datum.role)")
    coloured = cells.encode(color=alt.Color("role:N", scale=scale, legend=None))
    texts = base.mark_text(fontSize=11, lineBreak="|", color="black").encode(text="text:N")
    size = {"width": alt.Step(COLUMN), "height": alt.Step(ROW), "background": "white"}
    return cast("dict[str, object]", alt.layer(coloured, texts).properties(**size).to_dict())


def rendered(name: str) -> str:
    scenario = load_scenario(SCENARIOS / f"{name}.yaml")
    runner = Runner(scenario, CheckedEngine(scenario.cluster.spec(0)))
    _, run = run_explored(runner, runner.run, name)
    return vl_convert.vegalite_to_svg(chart(columns(run)))


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DRAWN:
        (FOLDER / f"{name}.svg").write_text(rendered(name) + "\n", encoding="utf-8")
