"""The line that a failed Spark process ends with, by what its log holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.pipeline.failures import PipelineFailed, reason
from experiments.studies.pipeline.options import LOCAL, SparkOptions
from experiments.studies.pipeline.session import LOOKS, Watch
from experiments.support.errors import InputError
from tests.yaml_rows import rows

CLUSTER = SparkOptions("spark://10.0.0.1:7077", {"spark.executor.memory": "2g"})


@pytest.mark.parametrize(("log", "line"), rows(__file__, "wrong-inputs.yaml"))
def test_wrong_input_is_named_in_one_line(log: str, line: str) -> None:
    error = reason(["WARNING: Using incubator modules", *log.splitlines()], "s3://b/s", CLUSTER)
    assert isinstance(error, InputError)
    assert str(error).startswith(line)


def test_full_disk_is_named_with_what_is_free_and_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
    error = reason(["Caused by: java.io.IOException: No space left on device"], str(tmp_path), LOCAL)
    assert isinstance(error, PipelineFailed)
    parts = str(error).split(" MB free now)")
    assert parts[0].startswith(f"a disk is full, that of {tmp_path} (")
    assert parts[1].startswith(" or of /dev/shm (")
    assert parts[2] == "; what was there before is kept, and the same command goes on when there is room"
    assert "or of a worker's spark.local.dir; " in str(reason(["Disk quota exceeded"], "s3://b/s", CLUSTER))


def test_too_little_memory_names_the_setting() -> None:
    log = ["java.lang.OutOfMemoryError: Java heap space"]
    assert str(reason(log, "s", LOCAL)).startswith("Spark had too little memory, spark.driver.memory=1g; ")
    assert "memory, spark.executor.memory=2g; " in str(reason(log, "s", CLUSTER))


def test_other_failures_begin_with_the_exception_and_end_with_the_log() -> None:
    log = ["Traceback:", "py4j.protocol.Py4JJavaError: An error", ": java.lang.IllegalStateException: no", "\tat x"]
    first, *rest = str(reason(log, "s", LOCAL)).splitlines()
    assert first == "the Spark process failed: java.lang.IllegalStateException: no"
    assert rest == log
    assert str(reason([], "s", LOCAL)).splitlines() == ["the Spark process failed: no output"]


def test_each_time_without_an_executor_is_reported_once() -> None:
    watch = Watch("1g of memory")
    looks = [0] * (LOOKS + 3) + [1] + [0] * (LOOKS - 1) + [2] + [0] * LOOKS
    lines = [watch.look(executors) for executors in looks]
    assert [at for at, line in enumerate(lines) if line] == [LOOKS - 1, len(looks) - 1]
    assert "waiting for a worker with 1g of memory free" in str(lines[-1])
