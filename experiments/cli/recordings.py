"""`isray check` and `isray soak`: what clients and nodes have recorded is checked; a finding is exit code 1.

`check` takes a recording from either engine (docs/check.md). `soak` puts load and faults on a cluster on Ray; no
acknowledged record may be lost.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.cli.game_day import RunningAddress, RunningName
from experiments.cli.output import Json, fail_if, flag, option, print_first, print_result, table_of
from experiments.cli.run_pages import Exploration, Html, expect_page
from experiments.engines.ray.session import expect_kills, stay_on_loopback
from experiments.support.errors import InputError
from experiments.support.progress import progress

if TYPE_CHECKING:
    from experiments.check.check_recording import CheckResult
    from experiments.check.recording import Recording
    from experiments.engines.clusters.cluster_state import ClusterState
    from experiments.explorer.run import Run
    from experiments.hunt.soak.run import SoakResult


def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A recording: of --trace, or of a soak.")],
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
    shown = Exploration(html, None, None if html is None else _explored(recording, checked), None)
    going_on = not recording.is_complete and recording.is_being_written
    document = checked.document() | {"is_being_written": going_on} | shown.document
    print_result(as_json, document, _show_checked, checked, shown, going_on)
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
        *([] if checked.is_complete else [("checked until", _when(checked, checked.until_ms or 0))]),
        *([] if checked.began_unix_ms is None else [("began", _when(checked, 0))]),
        ("acknowledged records lost", checked.lost_words()),
        *(("lost", line) for line in lost_lines(checked)),
    ]
    return run_of_journal(collector.journal(), checked.what, facts, recording.spec, recording.records)


def _show_checked(checked: CheckResult, shown: Exploration, going_on: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    violated = Counter(violation.invariant.partition(".")[0] for violation in checked.violations)
    counts = (
        (name, str(count), f"[red]{violated[name]}[/]" if name in violated else "")
        for name, count in checked.looked_at.items()
    )
    console.print(table_of(("invariant", "checks", "violated"), counts))
    print_first(console, [f"[red]lost[/] {line}" for line in lost_lines(checked)])
    violations = [f"[red]violated[/] {it.invariant} at {it.time_ms} ms: {it.detail}" for it in checked.violations]
    print_first(console, violations)
    for line in checked.unjudged:
        console.print(f"not checked: {line}")
    beyond = [name for name, kept in checked.within_tolerance.items() if not kept]
    if beyond and not checked.nothing_may_be_lost:
        console.print(f"beyond tolerance, so losses are no violations: {', '.join(beyond)}")
    release = "" if checked.kafka_release is None else f", by the rules of Kafka {checked.kafka_release}"
    console.print(f"generation: {checked.generation}{release}")
    console.print(f"acknowledged records lost: {checked.lost_words()}")
    verdict = f"[red]{len(checked.violations)} violations[/]" if checked.violations else "[green]no violation[/]"
    console.print(
        f"{checked.what} on {checked.engine}, seed {checked.seed}: {verdict} in {checked.events} events, "
        f"{checked.metadata_records} metadata records, {checked.operations} operations"
    )
    if not checked.is_complete:
        why = "is still being written" if going_on else "was not completed: its run ended before it could be"
        console.print(f"checked until {_when(checked, checked.until_ms or 0)}: the recording {why}")
    shown.show(console)


def lost_lines(checked: CheckResult) -> list[str]:
    """A line for each election that has lost acknowledged records: which these are, and what the elected lacked."""
    lines = []
    for lost in checked.lost:
        offsets = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in lost.offsets)
        records = f"{lost.records} acknowledged record{'' if lost.records == 1 else 's'} of {lost.partition}"
        what = f"{records} (acks={lost.acks}, offsets {offsets})"
        if lost.election is None:
            lines.append(f"{what}: no election in the recording explains it")
            continue
        how = "by the election at" if lost.is_certain else "probably by the election at"
        lines.append(f"{what} {how} {lost.election.words(_when(checked, lost.election.time_ms))}")
    return lines


def _when(checked: CheckResult, time_ms: int) -> str:
    """A time of the recording: as wall-clock time, where it has one."""
    if checked.began_unix_ms is None:
        return f"{time_ms / 1000:.3f} s"
    at = datetime.fromtimestamp((checked.began_unix_ms + time_ms) / 1000, UTC)
    return f"{at.isoformat(sep=' ', timespec='milliseconds').removesuffix('+00:00')} UTC"


def soak(
    minutes: Annotated[float, option("M", "How long, at least.", min=0.0)] = 10.0,
    seed: Annotated[int, option("N", "Seed of the schedule of faults.", min=0)] = 0,
    brokers: Annotated[int | None, option("N", "Their number; 3 if not given.", min=3, max=9)] = None,
    controllers: Annotated[int | None, option("N", "Their number; 1 if not given.", min=1, max=9)] = None,
    partitions: Annotated[int, option("N", "Their number.", min=1, max=100)] = 4,
    rate: Annotated[int, option("R", "Records per second to send.", min=10)] = 500,
    faults: Annotated[str | None, option("a,b,...", "Kinds of faults; otherwise all.")] = None,
    out: Annotated[Path | None, option("DIR", "A new folder for history and logs.")] = None,
    name: RunningName = None,
    address: RunningAddress = None,
    html: Annotated[Path | None, option("FILE", "Write the report page of the day to this file.")] = None,
    kafka_clients: Annotated[bool, flag("--kafka-clients", "librdkafka writes and reads, on the listeners.")] = False,
    as_json: Json = False,
) -> None:
    """Put a cluster on Ray under load, inject one fault after another, and check what its clients recorded. With --name
    or --address a cluster of isray up, which is afterwards as it was."""
    stay_on_loopback()
    expect_kills()
    from experiments.check.recording import expect_new
    from experiments.engines.ray.session import ray_output_to_stderr
    from experiments.hunt.soak.run import SoakOptions
    from experiments.hunt.soak.run import soak as run
    from experiments.hunt.soak.running import require_possible, soak_running
    from experiments.support.librdkafka import librdkafka

    running = None if name is None and address is None else _running_cluster(name, address, brokers, controllers)
    kinds = _kinds(faults, has_own_ray=running is None)
    if out is not None:
        expect_new(out, "--out")
    expect_page(html)
    size = (
        (brokers or 3, controllers or 1) if running is None else (running.options.brokers, running.options.controllers)
    )
    if running is not None:
        require_possible(running, kinds, kafka_clients)
    if kafka_clients:
        librdkafka("--kafka-clients")
    folder = out or Path(tempfile.mkdtemp(prefix="isray-soak-"))
    cluster = None if running is None else running.options.name
    options = SoakOptions(minutes, seed, size[0], partitions, rate, kinds, folder, size[1], cluster, kafka_clients)
    with ray_output_to_stderr(), progress("isray soak", "faults") as shown:

        def show(sent: int, faults: int) -> None:
            shown.show("soaking", at=f"{sent} records and {faults} faults")

        result = run(options, show) if running is None else soak_running(options, running, show)
    print_result(as_json, result.document(), _show_soaked, result)
    if html is not None:
        from experiments.cli.day_page import write_day_page

        write_day_page(html, result)
    fail_if(result.findings)


def _running_cluster(
    name: str | None, address: str | None, brokers: int | None, controllers: int | None
) -> ClusterState:
    from experiments.engines.ray.connection import state_of

    for option_name, number in (("--brokers", brokers), ("--controllers", controllers)):
        if number is not None:
            raise InputError(option_name, "", number, "no such option with --name or --address")
    return state_of(name, address)


def _kinds(text: str | None, has_own_ray: bool) -> tuple[str, ...]:
    from experiments.hunt.soak.faults import FAULTS, OWN_RAY_ONLY

    every = [kind for kind in FAULTS if has_own_ray or kind not in OWN_RAY_ONLY]
    kinds = every if text is None else [word.strip() for word in text.split(",")]
    for kind in kinds:
        if kind not in FAULTS or kinds.count(kind) > 1:
            raise InputError("--faults", "", repr(kind), f"each at most once: {', '.join(FAULTS)}")
    return tuple(kinds)


def _show_soaked(result: SoakResult) -> None:
    console = Console(highlight=False, soft_wrap=True)
    recoveries = (
        (kind, str(len(times_ms)), " ".join(f"{time_ms / 1000:.1f}" for time_ms in times_ms))
        for kind, times_ms in result.recovery_ms.items()
    )
    console.print(table_of(("fault", "done", "recovered after, s"), recoveries))
    counts = result.counts
    console.print(
        f"{result.seconds:.0f} s, seed {result.options.seed}: {counts.sent} records sent, {counts.acknowledged} "
        f"acknowledged, {counts.failed} failed, {counts.unknown} unknown; {counts.read} read"
    )
    console.print(f"acknowledged records lost: {result.losses.words()}")
    for broker, sizes in result.memory.items():
        most, last = sizes["max_bytes"] / 1e6, sizes["last_bytes"] / 1e6
        console.print(f"broker {broker}: resident memory at most {most:.0f} MB, last {last:.0f} MB")
    print_first(console, [f"[red]found[/] {line}" for line in result.findings])
    print_first(console, [f"not judged: {line}" for line in result.unjudged])
    verdict = f"[red]{len(result.findings)} findings[/]" if result.findings else "[green]nothing lost[/]"
    console.print(f"{verdict}; history, schedule and logs are in {result.options.out}")
