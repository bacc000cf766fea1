"""`isray conformance FILE... [--kafka RELEASE] [--json]`: replays recorded vectors and reports where the core answers
otherwise. `isray conformance record` records vectors from a release of Kafka.

Exit code 0 if every row is answered as recorded, or departs by declared rules only; 1 if one does not.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.output import Json, fail, fail_if, flag, option
from experiments.cli.parse import release_named
from experiments.conformance.decisions import DepartedRow, FileResult, replay_file
from experiments.conformance.departures import ALL_DEPARTURES, Departure, departure_named
from experiments.conformance.recorder import record as recorder
from experiments.conformance.shapes import Difference
from experiments.support.errors import InputError
from experiments.support.releases.installed import exact_release, jars_in, recorder_jars
from experiments.support.releases.jdk import jdk

SHOWN_ROWS = 5
Events = Enum("Events", {kind: kind for kind in (*recorder.KINDS, *recorder.RAFT_SINCE) if kind != "decisions"})  # type: ignore[misc]


def conformance(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Vectors: JSON lines, gzip or not.")],
    departure: Annotated[
        str | None, option("NAME", "Also print the first five rows of this departure, field by field.", "--departures")
    ] = None,
    kafka: Annotated[
        str | None, option("RELEASE", "The release of files that do not say theirs, such as 4.4.0.", "--kafka")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay recorded decisions of Apache Kafka's controller and compare every field of the answers."""
    shown = None if departure is None else departure_named(departure, "--departures")
    release = None if kafka is None else release_named(kafka, "--kafka")
    results = [replay_file(path, release) for path in files]
    passed, failed = sum(result.passed for result in results), sum(result.failed for result in results)
    found = [(result.file, row) for result in results for row in result.departed]
    departed = {it: rows for it in ALL_DEPARTURES if (rows := [row for row in found if it in row[1].departures])}
    if shown is not None and shown not in departed:
        allowed = f"one of {', '.join(it.name for it in departed) or 'none: no row departs'}"
        raise InputError("--departures", "", f"{shown.name}, which no row shows", allowed)
    if as_json:
        documents = [_document(result) for result in results]
        departures = [_departure(it, rows) for it, rows in departed.items()]
        typer.echo(json.dumps({"files": documents, "passed": passed, "failed": failed, "departures": departures}))
    else:
        mismatches = [(result.file, mismatch) for result in results for mismatch in result.mismatches]
        for file, mismatch in mismatches[:SHOWN_ROWS]:
            _print_row(file, mismatch.row, mismatch.differences)
        _print_departures(departed, shown)
        for result in results:
            if not result.is_stated:
                typer.echo(f"{result.file} does not say its release; its rows fit {result.release.value} best")
        typer.echo(f"{passed} passed, {failed} failed, {len(found)} departures")
    fail_if(failed)


def record(
    kafka: Annotated[str, option("RELEASE", "The exact release of Kafka, such as 4.4.0.", "--kafka")],
    seed: Annotated[int, option("N", "The seed: the same rows for the same seed.")],
    rows: Annotated[int, option("M", "How many rows.", min=1)],
    traces: Annotated[bool, flag("--traces", "Record event sequences, not changes of single partitions.")] = False,
    events: Annotated[
        Events | None,
        option(None, "What the sequences are about; the default is one partition.", "--events"),
    ] = None,
    out: Annotated[Path | None, option("FILE", "The file of vectors, compressed if it ends in .gz.")] = None,
    jars: Annotated[
        Path | None, option("DIR", "The folder libs of an unpacked Kafka, instead of Maven Central.")
    ] = None,
) -> None:
    """Record decisions of a release of Apache Kafka's controller as vectors: its own code runs beside random events.
    Needs a JDK 17 and, without --jars, Maven Central."""
    exact_release(kafka, "--kafka")
    if events is not None and not traces:
        raise InputError("--events", "", events.value, "only with --traces")
    kind = "decisions" if not traces else "partition" if events is None else events.value
    recorder.require_recordable(kafka, kind)
    tools = jdk(os.environ, "javac")
    paths = recorder_jars(kafka) if jars is None else jars_in(jars, kafka)
    try:
        content = recorder.recorded(kafka, kind, seed, rows, paths, tools)
    except recorder.RecorderError as error:
        fail(f"isray: the recorder of {kafka} failed: {error}")
    if out is None:
        typer.echo(content, nl=False)
    else:
        recorder.write(out, content)
        typer.echo(f"{rows} rows of Kafka {kafka} in {out}")


def _document(result: FileResult) -> dict[str, object]:
    counts = {name: getattr(result, name) for name in ("file", "kind", "passed", "failed")}
    mismatches = [asdict(mismatch) for mismatch in result.mismatches]
    release = {"kafka_release": result.release.value, "release_is_stated": result.is_stated}
    return {**counts, **release, "departures": len(result.departed), "mismatches": mismatches}


def _departure(departure: Departure, rows: list[tuple[str, DepartedRow]]) -> dict[str, object]:
    return {
        "rule": departure.name,
        "count": len(rows),
        "kafka": departure.rule.kafka,
        "source": departure.rule.where,
        **{name: getattr(departure, name) for name in ("reason", "story", "scenario", "kafka_scenario")},
        "lost_acked": departure.lost,
        "rows": [{"file": file, "row": item.row} for file, item in rows],
    }


def _print_departures(departed: dict[Departure, list[tuple[str, DepartedRow]]], shown: Departure | None) -> None:
    for departure, rows in departed.items():
        typer.echo(f"departure {departure.name}: {len(rows)} rows")
        typer.echo(f"  Kafka: {departure.rule.kafka} ({departure.rule.where})")
        typer.echo(f"  reason: {departure.reason}")
        if departure.scenario:
            _print_story(departure)
        if shown is departure:
            for file, item in rows[:SHOWN_ROWS]:
                _print_row(file, item.row, item.differences)


def _print_story(departure: Departure) -> None:
    lost = "undecided" if departure.lost is None else departure.lost
    typer.echo(f"  story: {departure.story} Acknowledged records lost: {lost}, and 0 under isray's rule.")
    typer.echo(f"  run: isray scenario run {departure.scenario} --compare {departure.name}")


def _print_row(file: str, row: int, differences: tuple[Difference, ...]) -> None:
    typer.echo(f"{file}: row {row}")
    for it in differences:
        typer.echo(f"  {it.field}: expected {json.dumps(it.expected)}, found {json.dumps(it.found)}")
