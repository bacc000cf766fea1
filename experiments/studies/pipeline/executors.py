"""A line for the user when the analysis waits for executors.

A master accepts an application that none of its workers has room for, and one whose executors have all died; Spark then
waits in silence, as another application may end or a worker may join. The wait is right, the silence is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

LOOK_S = 5.0
LOOKS = 4
"""So many looks in a row without an executor are reported: 20 s, in which a master usually starts one."""


class Watch:
    """Decides when to report. `wanted`: what an executor needs, in words."""

    def __init__(self, wanted: str) -> None:
        self._wanted, self._without = wanted, 0

    def look(self, executors: int) -> str | None:
        """The line to report when there are so many executors now; one line for each time without any."""
        self._without = 0 if executors else self._without + 1
        if self._without != LOOKS:
            return None
        return (
            f"no executor runs: waiting for a worker with {self._wanted} free (--spark-conf changes what is asked for)"
        )


@contextmanager
def watched_executors(spark: SparkSession, report: Callable[[str], None]) -> Iterator[None]:
    """Reports by a thread, for the block, that an application of a master has no executor."""
    context, ended = spark.sparkContext, threading.Event()
    configuration = context.getConf()
    memory, cores = (
        configuration.get(f"spark.executor.{name}", least) for name, least in (("memory", "1g"), ("cores", "1"))
    )
    watch, tracker = Watch(f"{memory} of memory and {cores} core"), context._jsc.sc().statusTracker()

    def look() -> None:
        while not ended.wait(LOOK_S):
            line = watch.look(len(tracker.getExecutorInfos()) - 1)  # the driver is listed, too
            if line is not None:
                report(line)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
