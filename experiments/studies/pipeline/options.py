"""Where Spark runs, and with which settings: what the command line passes on to the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
