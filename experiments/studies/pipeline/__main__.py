"""The pipeline as a process of its own: `python -m experiments.studies.pipeline SESSION < WORK`.

SESSION is a JSON file with what a Spark session needs (`analysis.session_of`), WORK a line of JSON with what is to be
done (`analysis.work_of`), which may come after the session has started; without one the process ends. The JVM starts
in a thread, while this one imports the pipeline and makes silver of little data. When all is written, a line says so,
and the process ends its JVM. Exit code 2 if the input cannot be analysed; the reason is a line on standard output.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from experiments.studies.pipeline.options import SparkOptions, report
from experiments.studies.pipeline.session import starting_session, watched_executors
from experiments.support.errors import InputError
from experiments.support.processes import orderly_signals


def main(session: Path) -> int:
    """Carries out the analysis that standard input describes; returns the exit code."""
    found = json.loads(session.read_bytes())
    java_home, options = Path(found["java_home"]), SparkOptions(found["master"], found["settings"])
    with orderly_signals(), starting_session(java_home, options, little=found["little"]) as spark:
        from experiments.studies.pipeline.spark import LossesDisagree, carry_out

        line = sys.stdin.readline()
        if not line:
            return 0
        try:
            with nullcontext() if options.is_local else watched_executors(spark(), partial(report, "note")):
                carry_out(spark, json.loads(line), is_local=options.is_local)
        except (InputError, LossesDisagree) as error:
            report("refused", str(error))
            return 2
        report("done", "silver and gold are written")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
