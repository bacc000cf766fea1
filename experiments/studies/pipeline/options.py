"""What passes between a command and its Spark process: options, and reports as lines on standard output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

LOCAL_MASTER = "local[2]"


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
Report = Literal["stage", "note", "refused", "done"]
"""A stage begins; what the user should know; why the analysis cannot be done; silver and gold are written."""
READING, SILVER_STAGE, GOLD = "checking the batches", "silver: intervals, outages, losses", "gold: trials, cells"
STARTING = "starting Spark"


def report(kind: Report, text: str) -> None:
    print(f"{kind}: {text}", flush=True)


def reported(line: str) -> tuple[Report | None, str]:
    """The kind and the text of a report; None with the line itself for other output."""
    kind, _, text = line.partition(": ")
    return (cast("Report", kind), text.rstrip()) if kind in get_args(Report) else (None, line)
