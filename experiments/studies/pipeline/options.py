"""What passes between a command and its Spark process: where Spark runs and with which settings; and, as lines on the
standard output of the process, what it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

CORES = 2
LOCAL_MASTER = f"local[{CORES}]"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """`master`: as `spark-submit --master`. `settings`: replace those of `pipeline/session.py`."""

    master: str = LOCAL_MASTER
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs within this machine's process."""
        return self.master.startswith("local")


LOCAL = SparkOptions()
"""Spark within this process, with the project's settings."""


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
