"""What the Spark process reports, as lines on its standard output, which the command that runs it reads."""

from __future__ import annotations

from typing import Literal, get_args

Report = Literal["stage", "note", "refused"]
"""A stage begins; what the user should know; why the analysis cannot be done."""
READING, SILVER_STAGE, GOLD = "checking the batches", "silver: intervals, outages, losses", "gold: trials, cells"


def report(kind: Report, text: str) -> None:
    """Reports `text`, one line."""
    print(f"{kind}: {text}", flush=True)


def reported(line: str) -> tuple[Report | None, str]:
    """The kind and the text of a report; None with the line itself for other output."""
    for kind in get_args(Report):
        if line.startswith(f"{kind}: "):
            return kind, line.strip().removeprefix(f"{kind}: ")
    return None, line
