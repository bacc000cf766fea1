"""A Spark session for one analysis, without console output, whose JVM ends with it.

By default Spark runs within this machine, the driver bound to 127.0.0.1; with a master (`spark://...`, `k8s://...`) the
tasks run in its executors. pyspark ends its JVM when the interpreter ends; here the end of the block waits for it, so
that no Java process outlives a command.

A master accepts an application that none of its workers has room for, and one whose executors have all died; Spark then
waits in silence, as another application may end or a worker may join. The wait is right; :class:`Watch` reports it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from experiments.studies.pipeline.class_archive import PLAIN, class_archive
from experiments.studies.pipeline.java import FRUGAL
from experiments.studies.pipeline.options import LOCAL, SparkOptions, report
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.declared import declared

LITTLE_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m -XX:NewSize=200m"
"""For a JVM that lives for seconds: it compiles quickly rather than well, and need not collect garbage to make room for
classes."""
JVM_EXIT_S = 60
ARCHIVE_S = 300
ARCHIVING = (
    "Spark's JVM archives its classes, once (half a minute on two free cores), and starts sooner from then on; "
    "Ctrl-C leaves the archive out"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Spark's settings by their names. `defaults`: those that `--spark-conf` may replace. `little`: for little data, on
    which the time goes into planning and compiling queries: these are interpreted, in few tasks, by a JVM that
    optimises little. `logging`: Log4j's properties."""

    defaults: dict[str, str]
    little: dict[str, str]
    logging: str


SETTINGS = declared(Settings, __file__, "spark.yaml")


@contextmanager
def spark_session(java_home: Path, options: SparkOptions = LOCAL, *, little: bool = False) -> Iterator[SparkSession]:
    """Spark on the given Java, for the block. The settings of `options` replace the project's (`SETTINGS`)."""
    os.environ |= {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable}
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="isray-spark-", ignore_cleanup_errors=True) as folder:
        archive = PLAIN
        if little and options.is_local:
            os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(FRUGAL)
            archive = class_archive(java_home, Path(pyspark.__file__).parent / "jars", Path(folder))
        session = _start(Path(folder), options, little, archive.options)
        archives = False
        try:
            yield session
            archives = archive.written is not None
        finally:
            gateway = SparkContext._gateway
            session.stop()
            if gateway is not None:
                gateway.shutdown()
                SparkContext._gateway = SparkContext._jvm = None
                gateway.proc.stdin.close()
                if archives:
                    report("note", ARCHIVING)
                elif archive.written is not None:  # it would write the archive now, while an error or a signal waits
                    gateway.proc.kill()
                _wait(gateway.proc, ARCHIVE_S if archives else JVM_EXIT_S)
                if archives:
                    archive.keep()


@contextmanager
def starting_session(
    java_home: Path, options: SparkOptions = LOCAL, *, little: bool = False
) -> Iterator[Callable[[], SparkSession]]:
    """As `spark_session`, which starts in a thread: a function that waits for it."""
    session = spark_session(java_home, options, little=little)
    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(session.__enter__)
        try:
            yield started.result
        finally:
            if started.exception() is None:
                session.__exit__(*sys.exc_info())


def _wait(jvm: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Waits for the end of the JVM, which an error or an interrupt makes a sudden one."""
    try:
        jvm.wait(timeout_s)
    except BaseException:
        jvm.kill()
        jvm.wait()
        raise


def _start(folder: Path, options: SparkOptions, little: bool, archive: str) -> SparkSession:
    logging = folder / "log4j2.properties"
    logging.write_text(SETTINGS.logging, encoding="utf-8")
    java_options = (
        f"-Djava.io.tmpdir={folder} -Dlog4j2.configurationFile=file:{logging} -XX:+UseSerialGC -XX:-UsePerfData"
    )
    own = (SETTINGS.little if little else {}) | {
        "spark.driver.extraJavaOptions": " ".join(filter(None, (java_options, LITTLE_OPTIONS * little, archive))),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.executorEnv.PYTHONPATH": str(PACKAGES_FOLDER),
    }
    if options.is_local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        own |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    found: dict[str, bool | float | int | str | None] = {**SETTINGS.defaults, **own, **options.settings}
    return SparkSession.builder.master(options.master).appName("isray").config(map=found).getOrCreate()


LOOK_S = 5.0
LOOKS = 4
"""So many looks in a row without an executor are reported: 20 s, in which a master usually starts one."""


class Watch:
    """Decides when to report. `wanted`: what an executor needs, in words."""

    def __init__(self, wanted: str) -> None:
        self._wanted, self._without = wanted, 0

    def look(self, executors: int) -> str | None:
        """The line to report, by the present number of executors; one line for each time without any."""
        self._without = 0 if executors else self._without + 1
        waits = f"waiting for a worker with {self._wanted} free (--spark-conf changes what is asked for)"
        return f"no executor runs: {waits}" if self._without == LOOKS else None


@contextmanager
def watched_executors(spark: SparkSession, report: Callable[[str], None]) -> Iterator[None]:
    """Reports by a thread, for the block, that an application of a master has no executor."""
    context, ended = spark.sparkContext, threading.Event()
    get = context.getConf().get
    wanted = f"{get('spark.executor.memory', '1g')} of memory and {get('spark.executor.cores', '1')} core"
    watch, tracker = Watch(wanted), context._jsc.sc().statusTracker()

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
