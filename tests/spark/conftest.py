"""One JVM for the tests that need a Spark session, but no process of their own for it.

An analysis starts a JVM, which takes ten seconds of processor time, most of them for what the JVM has not compiled yet.
Tests that ask for `spark` share one session; with `in_session` `analyze` runs the pipeline in it as well. The tests of
how the command runs Spark start their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from experiments.studies.pipeline import analysis
from experiments.studies.pipeline.failures import PipelineFailed
from experiments.studies.pipeline.java import java_home
from experiments.studies.pipeline.options import SparkOptions
from experiments.studies.pipeline.session import spark_session
from experiments.studies.pipeline.spark import LossesDisagree, carry_out
from experiments.support.errors import InputError
from experiments.support.progress import Progress


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session(java_home(), little=True) as session:
        yield session


@pytest.fixture
def in_session(spark: SparkSession) -> Iterator[None]:
    """`analyze` runs the pipeline in the session of this process."""
    with analyses_in(spark):
        yield


@contextmanager
def analyses_in(spark: SparkSession) -> Iterator[None]:
    def run(work: Mapping[str, object], options: SparkOptions, progress: Progress, started: analysis.Beside) -> None:
        try:
            carry_out(lambda: spark, work)
        except (InputError, LossesDisagree) as error:
            raise PipelineFailed(str(error)) from error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(analysis, "run_pipeline", run)
        yield
