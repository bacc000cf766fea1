"""`isray conformance FILE... [--json]`: replays recorded vectors and reports where the core answers otherwise.

Exit code 0 if every row is answered as recorded, 1 if one is not; wrong input raises InputError, which the
application turns into exit code 2.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.output import Json, fail_if
from experiments.conformance.decisions import FileResult, replay_file
from experiments.conformance.shapes import Difference

SHOWN_MISMATCHES = 5


def conformance(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Vectors: JSON lines, gzip or not.")],
    as_json: Json = False,
) -> None:
    """Replay recorded decisions of Apache Kafka's controller and compare every field of the answers."""
    results = [replay_file(path) for path in files]
    passed, failed = sum(result.passed for result in results), sum(result.failed for result in results)
    if as_json:
        typer.echo(json.dumps({"files": [_document(result) for result in results], "passed": passed, "failed": failed}))
    else:
        _print_mismatches(results)
        typer.echo(f"{passed} passed, {failed} failed")
    fail_if(failed)


def _document(result: FileResult) -> dict[str, object]:
    mismatches = [asdict(mismatch) for mismatch in result.mismatches]
    return {
        "file": result.file,
        "kind": result.kind,
        "passed": result.passed,
        "failed": result.failed,
        "mismatches": mismatches,
    }


def _print_mismatches(results: list[FileResult]) -> None:
    mismatches = [(result.file, mismatch) for result in results for mismatch in result.mismatches]
    for file, mismatch in mismatches[:SHOWN_MISMATCHES]:
        typer.echo(f"{file}: row {mismatch.row}")
        for difference in mismatch.differences:
            typer.echo(f"  {_line(difference)}")


def _line(difference: Difference) -> str:
    expected, found = (json.dumps(value) for value in (difference.expected, difference.found))
    return f"{difference.field}: expected {expected}, found {found}"
