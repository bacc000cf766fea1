"""`isray check`: checks a recording from either engine; docs/check.md. Exit code 1 with violations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.cli.output import Json, fail_if, print_first, print_result, table_of
from experiments.cli.run_pages import Exploration, Html, document_of, show
from experiments.support.progress import progress

if TYPE_CHECKING:
    from experiments.check.check_recording import CheckResult
    from experiments.check.recording import Recording
    from experiments.explorer.run import Run


def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A recording: of a scenario's --trace, or a soak.")],
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Check a recording: the history of the clients, and every invariant that can be decided from a trace."""
    from experiments.check.check_recording import check as check_recording
    from experiments.check.recording import Recording

    recording = Recording(folder)
    with progress("isray check") as progressing:
        progressing.show("checking")
        checked = check_recording(recording)
    shown = None if html is None else Exploration(html, None, _explored(recording, checked), None)
    print_result(as_json, checked.document() | document_of(shown), _show, checked, shown)
    fail_if(checked.violations)


def _explored(recording: Recording, checked: CheckResult) -> Run:
    from experiments.explorer.assemble import run_of_journal
    from experiments.explorer.recorder import TraceCollector

    collector = TraceCollector()
    for event in recording.events():
        collector.add(event)
    for violation in checked.violations:
        collector.add_violation(violation)
    facts = [
        ("generation", recording.manifest.generation),
        ("engine", checked.engine),
        ("seed", str(checked.seed)),
        ("violations", str(len(checked.violations))),
        ("acknowledged records lost", checked.losses.words()),
    ]
    return run_of_journal(collector.journal(), checked.what, facts, recording.spec, recording.records)


def _show(checked: CheckResult, shown: Exploration | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    violated = Counter(violation.invariant.partition(".")[0] for violation in checked.violations)
    counts = (
        (name, str(count), f"[red]{violated[name]}[/]" if name in violated else "")
        for name, count in checked.looked_at.items()
    )
    console.print(table_of(("invariant", "checks", "violated"), counts))
    violations = [f"[red]violated[/] {it.invariant} at {it.time_ms} ms: {it.detail}" for it in checked.violations]
    print_first(console, violations)
    for line in checked.unjudged:
        console.print(f"not checked: {line}")
    beyond = [name for name, kept in checked.within_tolerance.items() if not kept]
    if beyond and not checked.nothing_may_be_lost:
        console.print(f"beyond tolerance, so losses are no violations: {', '.join(beyond)}")
    console.print(f"acknowledged records lost: {checked.losses.words()}")
    verdict = f"[red]{len(checked.violations)} violations[/]" if checked.violations else "[green]no violation[/]"
    console.print(
        f"{checked.what} on {checked.engine}, seed {checked.seed}: {verdict} in {checked.events} events, "
        f"{checked.metadata_records} metadata records, {checked.operations} operations"
    )
    show(console, shown)
