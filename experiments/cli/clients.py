"""`isray clients`: the search for defects of aiokafka; `isray clients replay`, which runs one of its runs again; and
`isray clients compare`, which has aiokafka and librdkafka go through its faults on processes.

Exit code 1 if something was found, or if a replayed finding does not come about; another trace hash is no failure: the
protocol or the simulator has changed since. An interrupt ends the search early;
the same command goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json, fail_if, option, print_result, table_of, wide_console
from experiments.cli.parse import seed_range
from experiments.cli.run_pages import Html
from experiments.support.errors import InputError
from experiments.support.progress import progress

if TYPE_CHECKING:
    from experiments.hunt.clients.plan import ClientPlan, FindingFile
    from experiments.hunt.clients.processes import Compared
    from experiments.hunt.clients.run import PlanResult, Search


def clients(
    seeds: Annotated[str, option("A..B", "The seeds, both ends included.")],
    out: Annotated[Path, option("DIR", "The folder for results and for the smallest run of each finding.")] = Path(
        "out/clients"
    ),
    as_json: Json = False,
) -> None:
    """Search for defects of aiokafka: producers and consumers in virtual time under drawn faults, one run per seed."""
    _check_installed()
    from experiments.hunt.clients.run import search, smallest

    wanted, began_s = seed_range(seeds), time.monotonic()

    def show(found: Search) -> None:
        shown.show("running", found.runs, len(wanted), f"{len(found.seeds)} kinds of findings")

    with progress("isray clients", "seeds") as shown:
        found = search(wanted, out, show)
        shown.show("shrinking")
        files = smallest(found, out)
    seconds = time.monotonic() - began_s
    document = {
        "seeds": found.runs,
        "client_seconds": round(found.client_s, 3),
        "seconds": round(seconds, 3),
        "findings": [_row(name, found, file, path) for name, (file, path) in files.items()],
    }
    print_result(as_json, document, _show, found, files)
    fail_if(files)


def _row(name: str, found: Search, file: FindingFile, path: Path) -> dict[str, object]:
    return {
        "finding": name,
        "seeds": len(found.seeds[name]),
        "first_seed": found.seeds[name][0],
        "faults": len(file.plan.faults),
        "records": file.plan.records,
        "detail": file.finding.detail,
        "file": str(path),
    }


def _show(found: Search, files: dict[str, tuple[FindingFile, Path]]) -> None:
    rows = [
        (name, str(len(found.seeds[name])), str(len(file.plan.faults)), f"isray clients replay {path}")
        for name, (file, path) in files.items()
    ]
    if rows:
        wide_console().print(table_of(("finding", "seeds", "faults", "smallest run"), rows))
    typer.echo(f"{found.runs} seeds, {found.client_s:,.0f} s of client time: {len(files)} kinds of findings")


def replay(
    what: Annotated[str, typer.Argument(metavar="FILE|SEED", help="A file of isray clients, or a seed.")],
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Run one of the runs of isray clients again."""
    _check_installed()
    from experiments.hunt.clients.plan import draw, load
    from experiments.hunt.clients.run import run_plan

    saved = None if what.isascii() and what.isdecimal() else load(Path(what))
    result = run_plan(draw(int(what)) if saved is None else saved.plan, html)
    document: dict[str, object] = {
        "findings": [finding.model_dump() for finding in result.findings],
        "trace_hash": result.trace_hash,
    }
    if saved is not None:
        document |= {"same": result.of_class(saved.finding.name) is not None, "saved_trace_hash": saved.trace_hash}
    print_result(as_json, document, _show_replayed, result, saved, html)
    fail_if(result.findings if saved is None else not document["same"])


def compare(
    what: Annotated[str, typer.Argument(metavar="FILE|SEED", help="A file of isray clients, or a seed.")],
    as_json: Json = False,
) -> None:
    """Run one of the runs of isray clients by aiokafka and by librdkafka on processes, under the same faults."""
    _check_installed()
    from experiments.engines.ray.session import expect_kills, stay_on_loopback
    from experiments.support.librdkafka import librdkafka

    librdkafka("isray clients compare")
    expect_kills()
    stay_on_loopback()
    from experiments.hunt.clients.processes import compare

    found = compare(_plan(what))
    print_result(as_json, {name: it.document() for name, it in found.items()}, _show_compared, found)


def _plan(what: str) -> ClientPlan:
    """The plan of a seed, or of a file."""
    from experiments.hunt.clients.plan import draw, load

    return draw(int(what)) if what.isascii() and what.isdecimal() else load(Path(what)).plan


def _show_compared(found: Mapping[str, Compared]) -> None:
    for name, it in found.items():
        lines = [f"{finding.name}: {finding.detail}" for finding in it.findings] or ["nothing was found"]
        rates = ", ".join(f"API {key} {count}" for key, count in it.busiest.items())
        typer.echo("\n".join(f"{name}: {line}" for line in [*lines, f"most requests in a second: {rates}"]))


def _show_replayed(result: PlanResult, saved: FindingFile | None, html: Path | None) -> None:
    for finding in result.findings:
        typer.echo(f"{finding.name}: {finding.detail}")
    if not result.findings:
        typer.echo("nothing was found")
    if saved is not None and result.of_class(saved.finding.name) is None:
        typer.echo(f"not found: {saved.finding.name}")
    is_same = saved is None or result.trace_hash == saved.trace_hash
    typer.echo(f"trace: {result.trace_hash}" + ("" if is_same else ", not that of the file"))
    if html is not None:
        typer.echo(f"page: {html}")


def _check_installed() -> None:
    if find_spec("aiokafka") is None:
        raise InputError("isray clients", "", "no aiokafka", "pip install 'isray[clients]'")
