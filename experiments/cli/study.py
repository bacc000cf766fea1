"""`isray study`: run, or its three parts sweep, analyze and report alone; what else is done with studies.

Exit code 1 if a trial or the pipeline fails, if a trial that is run again has another trace than in the study (its code
has changed since), or if a result is not within the 99.9 % interval of the Markov model's value. Ray and Altair are
imported when they are needed; Spark runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from experiments.cli.failure_logs import import_failures
from experiments.cli.help import App
from experiments.cli.numbers import study_numbers
from experiments.cli.output import (
    ExitCode,
    Json,
    fail,
    fail_if,
    narrow_console,
    option,
    print_json,
    print_result,
    table_of,
    wide_console,
)
from experiments.cli.parse import name_values
from experiments.cli.run_pages import Exploration, Html
from experiments.studies.pipeline.options import LOCAL_MASTER, SparkOptions
from experiments.support.errors import InputError
from experiments.support.progress import Progress, progress
from experiments.support.shipped import STUDIES, file_or_shipped

if TYPE_CHECKING:
    from experiments.studies.design.study import StudyPlan
    from experiments.studies.estimation.estimates import CellEstimates
    from experiments.studies.replay.replay import Replayed
    from experiments.studies.report.summary import Summary
    from experiments.studies.theory.coverage import Coverage
    from experiments.studies.theory.validation import CellComparison

app = App("Studies: sweep parameters, analyse the traces with Spark, write a report.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The study file (YAML), or the name of a shipped one.")]
Folder = Annotated[str, typer.Argument(metavar="DIR", help="The output directory of a study, or its URL.")]
Out = Annotated[
    str, option("DIR", "The study's output directory, or a URL such as s3://bucket/name; a sweep resumes there.")
]
Engine = Annotated[str | None, typer.Option("--engine", help="Overrides the file's engine: sim or ray.")]
Trials = Annotated[int | None, option("N", "Trials per cell, instead of the file's.")]
Address = Annotated[
    str | None, typer.Option("--address", help="A Ray cluster to use; otherwise RAY_ADDRESS, otherwise a private one.")
]
Master = Annotated[
    str, option("URL", "Where Spark runs, as spark-submit takes it: local[N], spark://HOST:PORT, k8s://...")
]
Conf = Annotated[list[str] | None, option("NAME=VALUE", "A setting of Spark; may be given several times.")]
_RUN = "isray study {} last-replica-standing --out out/last-replica-standing"


@app.register("run", _RUN.format("run"))
def run_study(
    file: File,
    out: Out,
    engine: Engine = None,
    trials: Trials = None,
    address: Address = None,
    spark_master: Master = LOCAL_MASTER,
    spark_conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Sweep, analyse, report: everything, and the table of cells."""
    from experiments.studies.pipeline.analysis import analyze, beside
    from experiments.studies.report.summary import summary
    from experiments.studies.sweeps.output import read_record
    from experiments.studies.sweeps.staging import CELLS, local_copy
    from experiments.studies.sweeps.storage import store_at

    spark = SparkOptions(spark_master, name_values("--spark-conf", spark_conf, "spark."))
    with _failures(), beside(spark) as started:
        with progress("isray study") as shown:
            _sweep(file, out, engine, trials, address, shown, started.begin)
            write_report = _report_writer()
            cells = analyze(out, shown, spark, started)
            with local_copy(out, shown, traces=False) as folder:
                shown.show("report")
                write_report.result()(folder, out)
                documents, study = json.loads((folder / CELLS).read_bytes()), read_record(folder).study
        report = store_at(out).place("report.html")
        found = summary(study, cells)
        document = {"out": out, "report": report, "headline": found.headline, "cells": documents}
        print_result(as_json, document, _print_table, study, cells, found, out, report)


def _report_writer() -> Future[Callable[[Path, str], object]]:
    """`write_report`, which a thread imports and prepares, while Spark is at work."""

    def prepare() -> Callable[[Path, str], object]:
        from experiments.studies.report.charts.library import warm_up
        from experiments.studies.report.render import write_report

        warm_up()
        return write_report

    thread = ThreadPoolExecutor(1)
    try:
        return thread.submit(prepare)
    finally:
        thread.shutdown(wait=False)


@app.register("sweep", _RUN.format("sweep"))
def sweep_study(
    file: File, out: Out, engine: Engine = None, trials: Trials = None, address: Address = None, as_json: Json = False
) -> None:
    """Run the trials, spread over Ray; the same command resumes an interrupted sweep."""
    with _failures(), progress("isray study") as shown:
        ran = _sweep(file, out, engine, trials, address, shown)
    print_result(as_json, {"out": out, "trials_run": ran}, typer.echo, f"{ran} trials run; traces: {out}/trace")


@app.register("analyze", "isray study analyze out/last-replica-standing")
def analyze_study(
    folder: Folder, spark_master: Master = LOCAL_MASTER, spark_conf: Conf = None, as_json: Json = False
) -> None:
    """Turn the traces of a sweep into numbers with intervals: silver/, gold/, gold/cells.json."""
    from experiments.studies.pipeline.analysis import analyze, beside
    from experiments.studies.report.summary import summary
    from experiments.studies.sweeps.output import read_record
    from experiments.studies.sweeps.staging import CELLS, local_copy

    spark = SparkOptions(spark_master, name_values("--spark-conf", spark_conf, "spark."))
    with _failures(), beside(spark) as started:
        with progress("isray study") as shown:
            cells = analyze(folder, shown, spark, started)
            with local_copy(folder, traces=False) as local:
                documents, study = json.loads((local / CELLS).read_bytes()), read_record(local).study
        found = summary(study, cells)
        document = {"out": folder, "headline": found.headline, "cells": documents}
        print_result(as_json, document, _print_table, study, cells, found, folder)


@app.register("report", "isray study report out/last-replica-standing")
def report_study(folder: Folder, as_json: Json = False) -> None:
    """Write report.html of an analysed study."""
    from experiments.studies.report.render import write_report
    from experiments.studies.sweeps.staging import local_copy
    from experiments.studies.sweeps.storage import store_at

    with _failures(), local_copy(folder, traces=False) as local:
        write_report(local, folder)
    report = store_at(folder).place("report.html")
    print_result(as_json, {"out": folder, "report": report}, typer.echo, f"report: {report}")


@app.register("list", "isray study list out")
def list_studies(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="List the studies with results in this directory, or below it, instead."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The studies that come with isray, each with its question; or those with results, and how far each is."""
    if folder is not None:
        with _failures():
            _list_results(folder, as_json)
        return
    from experiments.studies.design.loader import load_study

    studies = [(path, load_study(path)) for path in sorted(STUDIES.glob("*.yaml"))]
    rows = [{"file": str(path), "name": study.name, "question": study.question} for path, study in studies]
    texts = ((it.name, it.question or "", str(len(it.cells)), str(it.max_trials)) for _, it in studies)
    table = table_of(("name", "question", "cells", "trials per cell"), texts, title=str(STUDIES), lines=True)
    print_result(as_json, rows, wide_console().print, table)


def _list_results(folder: Path, as_json: bool) -> None:
    from experiments.studies.report.results import studies_in

    found, refused = studies_in(folder)
    texts = ((it.place, it.name, it.question or "", f"{it.trials} of {it.wanted}", it.stage) for it in found)
    table = table_of(("directory", "name", "question", "trials", "stage"), texts, title=str(folder), lines=True)
    print_result(as_json, [asdict(study) for study in found], wide_console().print, table)
    for error in refused:
        typer.echo(f"isray: {error}", err=True)
    fail_if(refused)


@app.register("open", "isray study open out/last-replica-standing")
def open_study(
    folder: Folder,
    browser: Annotated[bool, typer.Option(help="Open the report in the browser, where there is a terminal.")] = True,
    as_json: Json = False,
) -> None:
    """Open the report of a study; print how far the study is and the command that comes next."""
    from experiments.studies.report.results import results_of

    with _failures():
        study = results_of(folder)
    if as_json:
        print_json(asdict(study) | {"next": study.next_command})
        return
    typer.echo(f"{study.name}: {study.question or 'no question'}")
    typer.echo(f"{study.stage}, {study.trials} of {study.wanted} trials in {study.cells} cells, in {study.place}")
    typer.echo(f"next: {study.next_command}" if study.next_command else f"report: {study.report}")
    if study.next_command is None and browser and sys.stdout.isatty() and Path(study.report).is_file():
        typer.launch(Path(study.report).resolve().as_uri())


def _sweep(
    file: Path,
    out: str,
    engine: str | None,
    trials: int | None,
    address: str | None,
    shown: Progress,
    when_little: Callable[[], object] = lambda: None,
) -> int:
    from experiments.studies.design.loader import load_study
    from experiments.studies.failures.words import remarks
    from experiments.studies.sweeps.local import is_promising
    from experiments.studies.sweeps.nodes import WorkersLost
    from experiments.studies.sweeps.storage import StorageFailed
    from experiments.studies.sweeps.sweep import sweep
    from experiments.studies.trials.estimators import run_cell_trial

    study = load_study(file_or_shipped(file, STUDIES, "a study file"), trials, engine)
    for line in remarks(cell.parameters for cell in study.cells):
        shown.note(line)
    if is_promising(study, address):
        when_little()
    try:
        return sweep(study, out, run_cell_trial, address, shown, when_little)
    except KeyboardInterrupt:
        shown.note(f"interrupted; {_kept(out)}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except (WorkersLost, StorageFailed) as error:
        raise type(error)(f"{error}; {_kept(out)}") from error


def _kept(out: str) -> str:
    """What a sweep that ended early leaves, and how to go on."""
    from experiments.studies.report.results import results_of
    from experiments.studies.sweeps.storage import StorageFailed

    try:
        kept = results_of(out)
    except StorageFailed:
        return f"the trials that {out} has are kept; the same command goes on"
    except InputError:
        return f"no trial is in {out} yet; the same command begins again"
    return f"{kept.trials} of {kept.wanted} trials are kept in {out}; the same command goes on"


@contextmanager
def _failures() -> Iterator[None]:
    """Ends the command with exit code 1 if a trial, the storage or the pipeline fails, or Ray loses the workers; on an
    interrupt with exit code 130 and what it leaves."""
    from experiments.studies.pipeline.failures import KEPT, PipelineFailed
    from experiments.studies.sweeps.nodes import WorkersLost
    from experiments.studies.sweeps.storage import StorageFailed
    from experiments.studies.trials.batch import TrialFailed

    try:
        yield
    except (TrialFailed, StorageFailed, WorkersLost, PipelineFailed) as error:
        fail(f"isray: {error}")
    except KeyboardInterrupt:
        fail(f"isray: interrupted; {KEPT}", code=ExitCode.INTERRUPTED)


def _print_table(
    study: StudyPlan, cells: Sequence[CellEstimates], found: Summary, place: str, report: str | None = None
) -> None:
    from experiments.studies.report.partial import partial
    from experiments.studies.report.words import cell_name, warnings

    first, *others = found.columns
    columns = (Column(first), *(Column(title, justify="right") for title in others))
    console = narrow_console()
    console.print(f"{study.name}: {found.headline}", markup=False, highlight=False)
    table = Table(*columns, caption=found.caption, show_lines=True)
    for row in found.rows:
        table.add_row(*row)
    console.print(table)
    names, trials = [cell_name(cell.swept) for cell in study.cells], [values.trials for values in cells]
    for each in partial(study, names, trials, {}):
        console.print(f"partial: {each.trials} of {each.wanted} trials of {each.setting}")
    warned = {cell_name(cell.swept): values.warnings for cell, values in zip(study.cells, cells, strict=True)}
    for warning in warnings(warned):
        console.print(warning)
    typer.echo(f"report: {report}" if report is not None else f"the page: isray study report {place}")


SHOWN_LINES = 60


@app.register("replay", "isray study replay out/last-replica-standing --cell 0 --trial 3 --html out/loss.html")
def replay_trial(
    folder: Folder,
    cell: Annotated[int, option("N", "The cell, by its place in the study, from 0 on.", min=0)],
    trial: Annotated[int, option("K", "The trial's number, from 0 on.", min=0)],
    loss: Annotated[int, option("I", "Which loss of the trial to explain, from 0 on.", min=0)] = 0,
    html: Html = None,
    compare_cell: Annotated[
        int | None, option("N", "Show the same trial of this cell beside it, with the first differences.", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one trial of a study again: the story of a loss, as text and as a page."""
    from experiments.studies.replay.replay import recorded_trace, replay
    from experiments.studies.sweeps.output import read_record

    record = read_record(folder)
    found = replay(record.study, cell, trial, loss)
    other = None
    if compare_cell is not None:
        if compare_cell == cell:
            raise InputError("--compare-cell", "", str(cell), "another cell than --cell")
        other = replay(record.study, compare_cell, trial, loss).run
    recorded = recorded_trace(folder, record, cell, trial)
    same = None if recorded is None else recorded == found.trace_hash
    shown = Exploration(html, None if compare_cell is None else f"cell {compare_cell}", found.run, other)
    document = {
        "cell": cell,
        "trial": trial,
        "seed": found.seed,
        "losses": found.losses,
        "trace_hash": found.trace_hash,
        "same": same,
        "story": found.story(SHOWN_LINES),
    }
    print_result(as_json, document | shown.document, _print_replayed, found, same, shown)
    fail_if(same is False)


def _print_replayed(found: Replayed, same: bool | None, shown: Exploration) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print("\n".join(found.story(SHOWN_LINES)), markup=False)
    console.print(f"{found.run.title}, seed {found.seed}: {found.run.notes[0]}", markup=False)
    verdicts = {
        True: "[green]the same trace[/] as in the study",
        False: "[red]not the same trace[/] as in the study: the code of the trial has changed since",
        None: "nothing in the study's directory to compare the trace with",
    }
    console.print(f"{verdicts[same]}: {found.trace_hash}")
    shown.show(console)


@app.register("validate", "isray study validate --jobs 2")
def validate_study(
    cells: Annotated[
        Path | None, option("FILE", "A list of cells to compare instead of the built-in ones (YAML).")
    ] = None,
    jobs: Annotated[
        int | None, option("N", "Processes that run trials; as many as there are processors by default.")
    ] = None,
    coverage: Annotated[
        int | None,
        option(
            "N",
            "Instead: of N studies of each cell, how many intervals hold the value that is known.",
        ),
    ] = None,
    estimator: Annotated[
        str, option("NAME", "That of the studies of --coverage: plain, importance, splitting, multifidelity or auto.")
    ] = "importance",
    as_json: Json = False,
) -> None:
    """Compare the simulation with the Markov model of each cell: both values and the z-score of their difference."""
    if coverage is not None:
        _validate_coverage(coverage, estimator, cells, jobs, as_json)
        return
    from experiments.studies.theory.cells import default_cells, load_cells
    from experiments.studies.theory.validation import left_out, validate

    if jobs is not None and jobs < 1:
        raise InputError("--jobs", "", jobs, "a whole number from 1")
    chosen = default_cells() if cells is None else load_cells(cells)
    with progress("isray study") as shown:
        found = validate(chosen, jobs, lambda done, total: shown.show("validate", done, total), _doubt)
    for index, cell in enumerate(chosen if cells is not None else []):
        for line in left_out(cell, {item.metric for item in found if item.cell == cell.given}):
            typer.echo(f"isray: cells[{index}]: {line}", err=True)
    print_result(as_json, [asdict(item) for item in found], _print_validation, found)
    fail_if([item for item in found if not item.agrees])


def _validate_coverage(studies: int, estimator: str, cells: Path | None, jobs: int | None, as_json: bool) -> None:
    """Exit code 1 if an interval of 95 % holds the value in fewer studies than chance explains."""
    from experiments.studies.theory.coverage import ESTIMATORS, coverage
    from experiments.studies.theory.coverage import cells as covered_cells

    if studies < 1:
        raise InputError("--coverage", "", studies, "a whole number from 1")
    if estimator not in ESTIMATORS:
        raise InputError("--estimator", "", estimator, " or ".join(ESTIMATORS))
    if cells is not None:
        raise InputError("--coverage", "", "--cells as well", "one of the two: the failure models are built in")
    found: list[Coverage] = []
    total = len(list(covered_cells(estimator)))
    with progress("isray study") as shown:
        for item in coverage(studies, jobs, estimator):
            found.append(item)
            shown.show("coverage", len(found), total)
    print_result(as_json, [asdict(item) for item in found], _print_coverage, found)
    fail_if([item for item in found if not item.agrees])


def _print_coverage(found: Sequence[Coverage]) -> None:
    numbers = ("known", "mean of the studies", "mean half-width", "intervals that hold it")
    title = "Coverage of 95 % intervals, in loss events per partition-year and shares of time"
    table = Table("failure model", "catch-up", "metric", *_numeric(numbers), title=title)
    for item in found:
        held, caught_up = f"{item.covered} of {item.studies}", "yes" if item.catch_up else "immediate"
        half_width = f"{item.half_width / item.mean:.1%}" if item.mean else ""
        table.add_row(item.model, caught_up, item.metric, f"{item.known:.4g}", f"{item.mean:.4g}", half_width, held)
    wide_console().print(table)


def _numeric(headings: Iterable[str]) -> list[Column]:
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def _doubt(item: CellComparison) -> None:
    from experiments.studies.report.words import cell_name

    what = f"{cell_name(item.cell)}, {item.metric}: z = {item.z:+.2f} in {item.trials} trials"
    typer.echo(f"isray: {what}; the cell is repeated with {2 * item.trials} others", err=True)


def _print_validation(found: Sequence[CellComparison]) -> None:
    from experiments.studies.report.words import cell_name

    headings = _numeric(("simulated", "95 % interval", "Markov", "z", "trials", "events"))
    table = Table("cell", "metric", *headings, title="Simulation and Markov model", caption="rates per partition-year")
    for before, item in zip((None, *found), found, strict=False):
        name = "" if before is not None and item.cell == before.cell else cell_name(item.cell)
        z = f"{item.z:+.2f}" if item.agrees else f"[red]{item.z:+.2f}[/]"
        interval = f"{item.ci_low:.4g} – {item.ci_high:.4g}"
        numbers = (f"{item.simulated:.4g}", interval, f"{item.markov:.4g}", z, str(item.trials), str(item.events))
        table.add_row(name, item.metric, *numbers)
    wide_console().print(table)
    beyond = sum(not item.agrees for item in found)
    covered = sum(item.ci_low <= item.markov <= item.ci_high for item in found)
    typer.echo(
        f"{covered} of {len(found)} intervals (95 %) cover the Markov value; {beyond} differ by more than 99.9 %"
    )


app.register("numbers", "isray study numbers --partitions 1000 --write-latency 4ms")(study_numbers)
app.register(
    "import-failures",
    "isray study import-failures outages-2025.csv --map node=hostname,down=began,up=over --out outages.csv",
)(import_failures)
