"""What the Spark process reports, as lines on its standard output, which the command that runs it reads."""

from __future__ import annotations

READING, SILVER_STAGE, GOLD = "checking the batches", "silver: intervals, outages, losses", "gold: trials, cells"

_STAGE, _NOTE, _REFUSAL = "stage: ", "note: ", "refused: "


def report_stage(stage: str) -> None:
    """Reports that this stage begins."""
    print(f"{_STAGE}{stage}", flush=True)


def report_note(text: str) -> None:
    """Reports what the user should know, in one line."""
    print(f"{_NOTE}{text}", flush=True)


def report_refusal(text: str) -> None:
    """Reports why the analysis cannot be done, in one line."""
    print(f"{_REFUSAL}{text}", flush=True)


def stage_of(line: str) -> str | None:
    """The stage that a line of the pipeline's standard output reports, None for other output."""
    return _after(line, _STAGE)


def note_of(line: str) -> str | None:
    """The note that a line reports, None for other output."""
    return _after(line, _NOTE)


def refusal_of(line: str) -> str | None:
    """The refusal that a line reports, None for other output."""
    return _after(line, _REFUSAL)


def _after(line: str, prefix: str) -> str | None:
    return line.strip().removeprefix(prefix) if line.startswith(prefix) else None
