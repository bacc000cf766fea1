"""The stages of the pipeline, as lines on its standard output, which the command that runs it reads."""

from __future__ import annotations

READING, SILVER, GOLD = "reading the traces", "silver: intervals, outages, losses", "gold: trials, cells"

_PREFIX = "stage: "


def report_stage(stage: str) -> None:
    """Reports that this stage begins."""
    print(f"{_PREFIX}{stage}", flush=True)


def stage_of(line: str) -> str | None:
    """The stage that a line of the pipeline's standard output reports, None for other output."""
    return line.strip().removeprefix(_PREFIX) if line.startswith(_PREFIX) else None
