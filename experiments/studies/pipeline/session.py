"""A Spark session on this machine only, without console output, whose JVM ends with it.

Local mode, driver bound to 127.0.0.1, no UI, no Hive, every temporary file in a folder that is removed. pyspark ends
its JVM when the interpreter ends; here the end of the block waits for it, so that no Java process outlives a command.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

CORES = 2
SHUFFLE_PARTITIONS = 4
JVM_EXIT_S = 60

_QUIET_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


@contextmanager
def spark_session(java_home: Path, memory: str = "1g") -> Iterator[SparkSession]:
    """Spark on the given Java, for the block. `memory`: the JVM's heap."""
    os.environ |= {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="isray-spark-", ignore_cleanup_errors=True) as folder:
        session = _start(Path(folder), memory)
        try:
            yield session
        finally:
            _stop(session)


def _start(folder: Path, memory: str) -> SparkSession:
    logging = folder / "log4j2.properties"
    logging.write_text(_QUIET_LOGGING, encoding="utf-8")
    java_options = f"-Djava.io.tmpdir={folder} -Dlog4j2.configurationFile=file:{logging} -XX:+UseSerialGC"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.local.dir": str(folder),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master(f"local[{CORES}]").appName("isray").config(map=settings).getOrCreate()


def _stop(session: SparkSession) -> None:
    gateway = SparkContext._gateway
    session.stop()
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    process.stdin.close()
    process.wait(JVM_EXIT_S)
