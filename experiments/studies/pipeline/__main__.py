"""The pipeline as a process of its own: `python -m experiments.studies.pipeline SESSION < WORK`.

SESSION is a JSON file with what a Spark session needs (`analysis.session_of`), WORK a line of JSON with what is to be
done (`analysis.work_of`), which may come after the session has started; without one the process ends. Exit code 2 if
the input cannot be analysed; the reason is a line on standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from experiments.engines.ray.session import orderly_signals
from experiments.studies.pipeline.options import SparkOptions, report
from experiments.studies.pipeline.session import spark_path, spark_session, watched_executors
from experiments.studies.pipeline.spark import LossesDisagree, Work, analyse
from experiments.studies.pipeline.tables import readme
from experiments.studies.sweeps.output import README, read_record
from experiments.studies.sweeps.storage import store_at
from experiments.studies.trials.batch import Batch
from experiments.support.errors import InputError


def main(session: Path) -> int:
    """Carries out the analysis that standard input describes; returns the exit code."""
    found = json.loads(session.read_bytes())
    java_home, options = Path(found["java_home"]), SparkOptions(found["master"], found["settings"])
    with orderly_signals(), spark_session(java_home, options, little=found["little"]) as spark:
        line = sys.stdin.readline()
        if not line:
            return 0
        asked = json.loads(line)
        try:
            with nullcontext() if options.is_local else watched_executors(spark, partial(report, "note")):
                carry_out(spark, asked)
        except (InputError, LossesDisagree) as error:
            report("refused", str(error))
            return 2
    return 0


def carry_out(spark: SparkSession, asked: Mapping[str, Any]) -> None:
    """Writes silver, gold and the README of the directory `out`; `asked` as `analysis.work_of` has it. Raises
    InputError if no trial of a cell can be read, LossesDisagree."""
    store, record = store_at(asked["out"]), read_record(asked["out"])
    batches = [Batch(*batch) for batch in asked["batches"]]
    analyse(spark, Work(store, spark_path(store), record, batches, asked["targets"]))
    store.write(README, readme(record).encode())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
