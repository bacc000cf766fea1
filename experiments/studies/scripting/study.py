"""A study as a Python object, which runs its trials on Ray, and the analysis by Spark, as `isray study` does."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pydantic import Field, ModelWrapValidatorHandler, SkipValidation, ValidationError, model_validator

from experiments.studies.design.loader import StudyFile, study_from
from experiments.studies.design.study import METRIC_NAME, StudyPlan
from experiments.studies.failures.words import remarks
from experiments.studies.pipeline.analysis import analyze
from experiments.studies.scripting.functions import (
    SOURCE,
    CustomMetric,
    FailureModel,
    MetricFunction,
    ScriptedTrial,
)
from experiments.studies.scripting.results import Results, Trials
from experiments.studies.sweeps import sweep as sweeping
from experiments.studies.sweeps.identity import content_digest
from experiments.studies.trials.batch import Trial
from experiments.studies.trials.estimators import run_cell_trial
from experiments.support.errors import InputError
from experiments.support.progress import SILENT, Progress
from experiments.support.progress import progress as shown_progress
from experiments.support.yaml_input import refused_by


class Study(StudyFile):
    """A study. Its arguments are the fields of a study file (docs/reference/study-files.md), and `metrics` and
    `failure_model` (`functions.py`).

    Values are numbers, strings and durations such as `"15m"`, as in a file. The values of `sweep` and `zip` may also be
    tuples, ranges of Python, or numpy arrays. Everything is checked when the object is created (InputError, one line).

    >>> Study(name="x", trials=50, base={"broker_mttf": "20d"}, sweep={"min_insync_replicas": [1, 2]})
    """

    metrics: SkipValidation[Sequence[CustomMetric | MetricFunction]] = Field(
        (), description="Custom metrics: functions, or CustomMetric objects."
    )
    failure_model: SkipValidation[FailureModel | None] = Field(
        None, description="A function that replaces the failures of the parameters."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, fields: object, handler: ModelWrapValidatorHandler[Study]) -> Study:
        try:
            study = handler(plain(fields))
        except ValidationError as error:
            raise refused_by(error, Study, SOURCE, raw=fields) from error
        study.plan()
        return study

    def plan(self) -> StudyPlan:
        """The study with its cells resolved. Raises InputError."""
        fields = {name: getattr(self, name) for name in StudyFile.model_fields if name in self.model_fields_set}
        if self.precision is not None:
            fields["precision"] = self.precision.model_dump()
        metrics, model = self._metrics(), self.failure_model
        if model is not None and not callable(model):
            raise InputError(SOURCE, "failure_model", repr(model), "a function of parameters and a random source")
        if metrics or model is not None:
            declared = [{"name": item.name, "unit": item.unit, "meaning": item.meaning} for item in metrics]
            name = None if model is None else getattr(model, "__name__", type(model).__name__)
            fields["functions"] = {"metrics": declared, "failure_model": name}
        return study_from(fields, SOURCE)

    def trial(self) -> Trial:
        """The function that runs one trial of a cell."""
        metrics, model = self._metrics(), self.failure_model
        if not metrics and model is None:
            return run_cell_trial
        models = [] if model is None else [model]
        return ScriptedTrial(metrics, model, content_digest(*(item.function for item in metrics), *models))

    def _metrics(self) -> tuple[CustomMetric, ...]:
        if not isinstance(self.metrics, Sequence):
            raise InputError(SOURCE, "metrics", repr(self.metrics), "a list of functions or CustomMetric objects")
        return tuple(_metric(item) for item in self.metrics)


def _metric(given: CustomMetric | MetricFunction) -> CustomMetric:
    """A metric with name and meaning; a plain function is a rate."""
    metric = given if isinstance(given, CustomMetric) else CustomMetric(given)
    if not callable(metric.function):
        raise InputError(SOURCE, "metrics", repr(given), "functions of the rows of a trial, or CustomMetric objects")
    function = metric.function
    name = metric.name or getattr(function, "__name__", type(function).__name__)
    if re.fullmatch(METRIC_NAME, name) is None:
        allowed = "lower-case letters, digits and _; a lambda needs CustomMetric(function, name=...)"
        raise InputError(SOURCE, "metrics", f"the name {name}", allowed)
    if metric.unit not in ("rate", "fraction"):
        raise InputError(SOURCE, f"metrics.{name}.unit", repr(metric.unit), "rate, fraction")
    words = (inspect.getdoc(function) if inspect.isfunction(function) else "") or name.replace("_", " ")
    return CustomMetric(function, metric.unit, name, metric.meaning or words.splitlines()[0].rstrip("."))


def plain(value: object) -> object:
    """A value as YAML would give it: tuples, ranges and numpy arrays as lists, numpy's numbers as Python's."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and not hasattr(value, "_fields"):
        return [plain(item) for item in value]
    return value


Out = Path | str | None


def sweep(study: Study, *, out: Out = None, address: str | None = None, progress: bool = False) -> Trials:
    """Runs the missing trials of the study; returns what they recorded.

    `out`: the output directory, or a URL such as `s3://bucket/name`; trials that it holds are not run again. None: a
    temporary folder, which lasts as long as the result. `address`: a Ray cluster; None: the one that this process is
    connected to, or `RAY_ADDRESS`, or a private one that ends with the call. With a cluster of several machines `out`
    must be reachable from all. `progress`: shown on standard error. Call from the main thread.

    Raises InputError for wrong arguments, FunctionFailed (a TrialFailed) with one line if a function of the script
    raises or returns what it must not, TrialFailed if a trial fails, StorageFailed, WorkersLost.
    """
    temporary = tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) if out is None else None
    place = Path(temporary.name) if temporary is not None else out
    assert place is not None
    plan = study.plan()
    with _progress(progress) as shown:
        for line in remarks(cell.parameters for cell in plan.cells):
            shown.note(line)
        sweeping.sweep(plan, place, study.trial(), address, shown)
    return Trials(plan, place, temporary)


def run(study: Study, *, out: Out = None, address: str | None = None, progress: bool = False) -> Results:
    """Runs the study, or what is missing of it in `out`, and analyses it with Spark in a process of its own.

    Arguments and errors are those of :func:`sweep`; also PipelineFailed, and InputError where no Java is found.
    """
    trials = sweep(study, out=out, address=address, progress=progress)
    with _progress(progress) as shown:
        analyze(trials.out, shown)
    return Results(trials)


def _progress(wanted: bool) -> AbstractContextManager[Progress]:
    return shown_progress("isray study") if wanted else nullcontext(SILENT)
