"""The report page of a game day: the explorer's page of its recording, with a time line of faults and unavailability, a
table of it, the losses and the verdict above it.

Events that only carry data on, which have no sentence, are left out of the diagram: a day has too many of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import altair as alt
from markupsafe import Markup

from experiments.check.recording import Recording
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.day import FAULT, Span, totals, without_leader
from experiments.explorer.page import write_page
from experiments.explorer.recorder import TraceCollector
from experiments.hunt.soak.run import DoneFault, SoakResult
from experiments.story.render import Heading
from experiments.studies.report.charts.theme import finished
from experiments.support.templates import templates
from protocol.ids import TopicPartition

ROW_PX = 26
COLOURS = {FAULT: "var(--fault)", "no leader": "var(--alarm)", "no acknowledgement": "var(--control)"}


def write_day_page(path: Path, result: SoakResult) -> None:
    """Writes the page of a soak whose recording is complete. InputError where the file cannot be written."""
    recording = Recording(result.options.out)
    events = list(recording.events())
    named = [it.row.rpartition("-") for it in result.gaps]  # one without a leader at the end has no final log
    with_gaps = {TopicPartition(topic, int(number)) for topic, _, number in named}
    partitions = sorted({final.partition for final in recording.finals()} | with_gaps)
    end_ms = max((event.time_ms for event in events), default=0)
    faults = [fault_span(done) for done in result.done]
    spans = [*faults, *without_leader(events, partitions, end_ms), *result.gaps]
    headings: list[Heading] = []
    collector, waiting = TraceCollector(headings), sorted(faults, key=lambda span: span.begin_ms)
    for event in sorted(events, key=lambda event: event.time_ms):
        while waiting and waiting[0].begin_ms <= event.time_ms:
            headings.append(Heading(waiting.pop(0).words, 0))
        if event.trace.sentence() or event.trace.kind.startswith("life_"):
            collector.add(event)
    headings += [Heading(span.words, 0) for span in waiting]
    facts = [
        ("cluster", result.options.cluster or "of its own"),
        ("verdict", f"{len(result.findings)} findings" if result.findings else "nothing lost"),
        ("acknowledged records lost", result.losses.words()),
        ("faults", str(len(result.done))),
        ("seed", str(result.options.seed)),
    ]
    run = run_of_journal(collector.journal(), "Game day", facts, recording.spec, recording.records)
    write_page(path, run, summary=summary(result, spans, partitions, end_ms))


def fault_span(done: DoneFault) -> Span:
    """A fault of a soak on the time line, until the cluster was healthy again."""
    text = f"{done.kind}: {done.what}; healthy again after {done.healed_after_ms / 1000:.1f} s"
    return Span("faults", FAULT, done.at_ms, done.at_ms + done.healed_after_ms, text)


def summary(result: SoakResult, spans: Sequence[Span], partitions: Sequence[TopicPartition], end_ms: int) -> Markup:
    """The part of the page above the diagram."""
    template = templates(Path(__file__).parent).get_template("day.html.j2")
    rows = totals(spans, partitions)
    chart = _time_line(spans, ["faults", *map(str, partitions)], end_ms)
    return Markup(template.render(result=result, counts=result.counts, rows=rows, chart=Markup(chart)))


def _time_line(spans: Iterable[Span], rows: Sequence[str], end_ms: int) -> str:
    """The spans as bars, one row for the faults and one for each partition, as SVG."""
    data = [
        {"row": it.row, "kind": it.kind, "begin": it.begin_ms / 1000, "end": it.end_ms / 1000, "words": it.words}
        for it in spans
    ]
    scale = alt.Scale(domain=[0, max(1.0, end_ms / 1000)])
    bars = (
        alt.Chart(alt.InlineData(data))
        .mark_bar(opacity=0.75)
        .encode(
            x=alt.X("begin:Q", scale=scale, title="seconds since the beginning"),
            x2="end:Q",
            y=alt.Y("row:N", sort=list(rows), scale=alt.Scale(domain=list(rows)), title=None),
            color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))),
        )
    )
    label = f"{len(data)} spans of time in {end_ms / 1000:.0f} s"
    return finished([bars], ROW_PX * len(rows), name="day", title="Time line", label=label).svg
