"""`isray soak`: load and faults against a cluster on Ray for a given time; no acknowledged record may be lost.

Exit code 1 if the check of the history has a finding.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from experiments.cli.output import Json, fail_if, option, print_first, print_result, table_of
from experiments.engines.ray.session import expect_kills, stay_on_loopback
from experiments.support.errors import InputError
from experiments.support.progress import progress

if TYPE_CHECKING:
    from experiments.hunt.soak.run import SoakResult


def soak(
    minutes: Annotated[float, option("M", "How long, at least.", min=0.0)] = 10.0,
    seed: Annotated[int, option("N", "Seed of the schedule of faults.", min=0)] = 0,
    brokers: Annotated[int, option("N", "Their number.", min=3, max=9)] = 3,
    controllers: Annotated[int, option("N", "Their number.", min=1, max=9)] = 1,
    partitions: Annotated[int, option("N", "Their number.", min=1, max=100)] = 4,
    rate: Annotated[int, option("R", "Records per second to send.", min=10)] = 500,
    faults: Annotated[str | None, option("a,b,...", "Kinds of faults; otherwise all.")] = None,
    out: Annotated[Path | None, option("DIR", "A new folder for history and logs.")] = None,
    as_json: Json = False,
) -> None:
    """Run a cluster on Ray under load, inject one fault after another, and check what its clients recorded."""
    stay_on_loopback()
    expect_kills()
    from experiments.check.recording import expect_new
    from experiments.engines.ray.session import ray_output_to_stderr
    from experiments.hunt.soak.run import SoakOptions
    from experiments.hunt.soak.run import soak as run

    kinds = _kinds(faults)
    if out is not None:
        expect_new(out, "--out")
    folder = out or Path(tempfile.mkdtemp(prefix="isray-soak-"))
    options = SoakOptions(minutes, seed, brokers, partitions, rate, kinds, folder, controllers)
    with ray_output_to_stderr(), progress("isray soak", "faults") as shown:
        result = run(options, lambda sent, faults: shown.show("soaking", at=f"{sent} records and {faults} faults"))
    print_result(as_json, result.document(), _show, result)
    fail_if(result.findings)


def _kinds(text: str | None) -> tuple[str, ...]:
    from experiments.hunt.soak.faults import FAULTS

    kinds = list(FAULTS) if text is None else [word.strip() for word in text.split(",")]
    for kind in kinds:
        if kind not in FAULTS or kinds.count(kind) > 1:
            raise InputError("--faults", "", repr(kind), f"each at most once: {', '.join(FAULTS)}")
    return tuple(kinds)


def _show(result: SoakResult) -> None:
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
    verdict = f"[red]{len(result.findings)} findings[/]" if result.findings else "[green]nothing lost[/]"
    console.print(f"{verdict}; history, schedule and logs are in {result.options.out}")
