"""Study files (docs/reference/study-files.md): YAML in, a `StudyPlan` out, or one line that says what is wrong.

Every cell is checked as a whole before the first trial runs, so that a sweep cannot fail on its last cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from experiments.studies.design import cluster
from experiments.studies.design.cluster import CLUSTER, ClusterFile
from experiments.studies.design.document import study_text, text_of, with_fields
from experiments.studies.design.model import PARAMETERS, CellParameters
from experiments.studies.design.parameter import Parameter
from experiments.studies.design.ranges import FORM as RANGE_FORM
from experiments.studies.design.ranges import is_range, protect, restore, values_of
from experiments.studies.design.recorded import RECORDED, Contents, FailureFile, record
from experiments.studies.design.study import METRIC_NAMES, Cell, StudyHeader, StudyPlan
from experiments.studies.design.targets import write_incidents
from experiments.studies.layouts.reader import FORM as LAYOUT_FORM
from experiments.studies.trace.metrics import ACKNOWLEDGED_LOSS_RATE, CLUSTER_METRICS, FRACTIONS, INCIDENTS, METRICS
from experiments.support.errors import InputError, shown
from experiments.support.fields import WrittenModel
from experiments.support.yaml_input import first_error, parse_yaml_mapping, read_text, validated
from protocol.errors import did_you_mean

Combination = dict[str, object]


class StudyFile(StudyHeader):
    """The fields of a study file; combinations and parameters are checked one by one afterwards."""

    duration: object = Field(PARAMETERS["duration"].default, description=PARAMETERS["duration"].description)
    base: dict[str, object] = Field(
        {}, description="Parameters that all cells share; see below. They may also stand beside `base`."
    )
    sweep: dict[str, object] | None = Field(
        None,
        description="Parameter: list of values, or a range. The cells are all combinations, the last axis fastest.",
    )
    zip: dict[str, object] | None = Field(
        None,
        description="Parameter: list of values, or a range, all of one length. Cell i takes the i-th value of each.",
    )
    cells: list[dict[str, object]] | None = Field(
        None,
        description="A list of mappings, each the parameters of one cell; all name the same parameters. A mapping with "
        "ranges gives a cell for each combination.",
    )
    files: dict[str, str] = Field(
        {},
        description="Name: content of the files that parameters name. `study.yaml` has them; a file that is not listed "
        "is read from the folder of the study file.",
    )


TOP_LEVEL = frozenset(StudyFile.model_fields) & frozenset(PARAMETERS)
"""Parameters that are fields of the file itself; the others belong into `base`."""
BASE = {name: parameter for name, parameter in PARAMETERS.items() if name not in TOP_LEVEL}
SWEEPABLE = {name: parameter for name, parameter in PARAMETERS.items() if name != "duration"}
ENGINES = ("sim", "ray")
MOST_BROKERS = 999
TAKEN = frozenset(
    {*(metric.name for metric in (*METRICS, *CLUSTER_METRICS)), *PARAMETERS, "trials", "partition_years", "failover_ms"}
)
"""Keys of `gold/cells.json` that no custom metric may have."""


def load_study(path: Path, trials: int | None = None, engine: str | None = None) -> StudyPlan:
    """The study in `path`, a file of a user or the `study.yaml` of a study's directory. `trials` (per cell) replaces
    the file's `trials` or `precision`; `engine` the file's engine.

    Raises InputError if the file or an override is wrong.
    """
    text = study_text(read_text(path, "a study file"))
    raw = parse_study(text, str(path))
    if "functions" in raw:
        raise InputError(str(path), "functions", "a field", "none in files: functions are given in Python (Study)")
    changes = {} if engine is None else _with_engine(raw, engine)
    if trials is not None:
        if trials < 1:
            raise InputError("--trials", "", trials, "a whole number from 1")
        changes |= {"precision": None, "trials": trials}
    fields = {name: value for name, value in (raw | changes).items() if name not in changes or value is not None}
    return study_from(fields, str(path), with_fields(text, changes), path.parent)


def _with_engine(raw: Mapping[str, object], engine: str) -> dict[str, object]:
    """The fields of a study file that differ when all its cells run on `engine`."""
    if engine not in ENGINES:
        raise InputError("--engine", "", engine, f"one of {', '.join(ENGINES)}")
    swept, cells = raw.get("sweep"), raw.get("cells")
    if isinstance(swept, dict) and "engine" in swept:
        return {"sweep": swept | {"engine": [engine]}}
    listed = [raw.get("zip"), *(cells if isinstance(cells, list) else [])]
    if any(isinstance(names, dict) and "engine" in names for names in listed):
        raise InputError("--engine", "", engine, "no --engine, as zip or cells of the file name the engines")
    return {"engine": engine}


def parse_study(text: str, source: str) -> dict[str, object]:
    """The mapping in the text of a study file; `source` names it in errors. Raises InputError."""
    raw = parse_yaml_mapping(protect(text), source, "a study file")
    return {str(restore(name)): restore(value) for name, value in raw.items()}


def study_from(raw: dict[str, object], source: str, text: str | None = None, folder: Path = Path()) -> StudyPlan:
    """The study described by the mapping `raw`; `source` names it in errors, `text` is its file, with comments. Files
    that parameters name are read from `folder`, and become part of the study (`files`).

    Raises InputError.
    """
    file = validated(StudyFile, _gathered(raw, source), source)
    if (file.trials is None) == (file.precision is None):
        found = "neither" if file.trials is None else "both"
        raise InputError(source, "trials", found, "either trials or precision")
    names = [] if file.functions is None else [metric.name for metric in file.functions.metrics]
    taken = next((name for name in names if name in TAKEN or names.count(name) > 1), None)
    if taken is not None:
        raise InputError(source, "metrics", f"the name {taken}", "names that no other metric or parameter has")
    axis, combinations = _combinations(file, source)
    _check_names(file.base, "base", source, BASE)
    is_about_losses = file.objective not in FRACTIONS or (
        file.targets is not None and file.targets.incidents is not None
    )
    base = {"estimate": "losses" if is_about_losses else "times"} | file.base
    base |= {name: getattr(file, name) for name in TOP_LEVEL}
    contents = Contents(dict(file.files), folder)
    _resolve(base, source, {})
    cells = tuple(
        _cell(index, base, combination, axis, source, contents) for index, combination in enumerate(combinations)
    )
    _refuse_duplicates(cells, axis, source)
    if contents.texts != file.files:
        read = {"files": contents.texts}
        raw, text = raw | read, None if text is None else with_fields(text, read)
    if (
        file.targets is not None
        and file.targets.incidents is not None
        and any(cell.parameters.acks == "0" for cell in cells)
    ):
        found = f"{write_incidents(file.targets.incidents)} with acks 0"
        raise InputError(source, "targets.incidents", found, "acks all or 1: with 0 nothing is acknowledged")
    header = {name: getattr(file, name) for name in StudyHeader.model_fields}
    whole = [cell.parameters.cluster is not None for cell in cells]
    if any(whole) and not all(whole):
        raise InputError(source, "cluster", f"none in cell {whole.index(False)}", "a cluster in all cells, or in none")
    if "objective" in raw and not any(whole) and raw["objective"] not in METRIC_NAMES:
        raise InputError(
            source, "objective", str(raw["objective"]), f"without a cluster one of {', '.join(METRIC_NAMES)}"
        )
    if "objective" not in raw and any(whole):
        header["objective"] = INCIDENTS
    elif "objective" not in raw and any(cell.parameters.acks != "all" for cell in cells):
        header["objective"] = ACKNOWLEDGED_LOSS_RATE
    return StudyPlan.model_validate(header | {"cells": cells, "source": raw, "text": text or text_of(raw)})


def _gathered(raw: dict[str, object], source: str) -> dict[str, object]:
    """The fields of a study file, of which the parameters that stand beside `base` are in it."""
    beside, base = {name: value for name, value in raw.items() if name in BASE}, raw.get("base", {})
    if not beside or not isinstance(base, dict):
        return raw
    twice = next((name for name in beside if name in base), None)
    if twice is not None:
        raise InputError(source, twice, "twice, in base and beside it", "one value")
    return {name: value for name, value in raw.items() if name not in beside} | {"base": base | beside}


def _combinations(file: StudyFile, source: str) -> tuple[str, list[Combination]]:
    """The name of the section that lists the combinations, and the combinations in the order of the file."""
    given = [name for name in ("sweep", "zip", "cells") if getattr(file, name) is not None]
    if len(given) > 1:
        raise InputError(source, given[1], " and ".join(given), "one of sweep, zip and cells")
    if not given:
        return "base", [{}]
    if file.cells is not None:
        return "cells", _listed(file.cells, source)
    found = file.sweep or file.zip
    if not found:
        raise InputError(source, given[0], "no parameter", f"one or more of {', '.join(SWEEPABLE)}")
    _check_names(found, given[0], source)
    axes = {name: _axis(name, values, f"{given[0]}.{name}", source) for name, values in found.items()}
    lengths = {name: len(values) for name, values in axes.items()}
    if file.zip is not None and len(set(lengths.values())) > 1:
        raise InputError(source, "zip", f"lengths {lengths}", "lists of equal length")
    rows = itertools.product(*axes.values()) if file.zip is None else zip(*axes.values(), strict=True)
    return given[0], [dict(zip(axes, row, strict=True)) for row in rows]


def _check_names(values: Iterable[str], section: str, source: str, known: Mapping[str, Parameter] = SWEEPABLE) -> None:
    for name in values:
        if name not in known:
            found = f"an unknown parameter{did_you_mean(name, known)}"
            raise InputError(source, f"{section}.{name}", found, ", ".join(known))


def _axis(name: str, given: object, place: str, source: str) -> list[object]:
    """The values of one axis: a list, in which a range stands for its values, or a range alone."""
    items = given if isinstance(given, list) else [given]
    if items is not given and not is_range(given):
        raise InputError(source, place, shown(given), f"a list of values; or {RANGE_FORM}")
    if not items:
        raise InputError(source, place, "an empty list", "one value or more")
    return [value for item in items for value in _values(name, item, place, source)]


def _values(name: str, given: object, place: str, source: str) -> list[object]:
    if not isinstance(given, str) or not is_range(given):
        return [given]
    try:
        return values_of(given, SWEEPABLE[name])
    except ValueError as error:
        raise InputError(source, place, given, str(error)) from error


def _listed(cells: list[dict[str, object]], source: str) -> list[Combination]:
    if not cells or not cells[0]:
        raise InputError(source, "cells", "no combination", "one or more mappings of parameters")
    combinations: list[Combination] = []
    for index, cell in enumerate(cells):
        place = f"cells[{index}]"
        _check_names(cell, place, source)
        if set(cell) != set(cells[0]):
            raise InputError(source, place, ", ".join(cell) or "nothing", f"exactly {', '.join(cells[0])}")
        choices = [_values(name, cell[name], f"{place}.{name}", source) for name in cells[0]]
        combinations += [dict(zip(cells[0], row, strict=True)) for row in itertools.product(*choices)]
    return combinations


def _cell(index: int, base: Combination, swept: Combination, axis: str, source: str, contents: Contents) -> Cell:
    section = f"cells[{index}]" if axis == "cells" else axis
    parameters = _resolve(base | swept, source, {name: f"{section}.{name}" for name in swept}, contents)
    assert parameters is not None
    return Cell(index=index, swept=swept, parameters=parameters)


class _Named(WrittenModel):
    """The parameters that name files, of which `CellParameters` has the content."""

    failures: Annotated[FailureFile | None, RECORDED] = None
    cluster: Annotated[ClusterFile | None, CLUSTER] = None

    @classmethod
    def allowed_in(cls, key: str) -> str:
        return PARAMETERS[key].allowed


def _resolve(
    values: Combination, source: str, places: Mapping[str, str], contents: Contents | None = None
) -> CellParameters | None:
    """Parameters from a file's values; `places` are the positions in the file of those that are not in `base`, and
    `contents` the files that parameters name.

    Raises InputError for a wrong value and for values that exclude each other. Without `contents` an axis may still
    replace a value: files are not read, values that exclude each other are accepted, and the answer may be None.
    """
    others = {name: value for name, value in values.items() if name not in _Named.model_fields}
    named = _checked(_Named, {name: values[name] for name in values if name not in others}, source, places)
    recorded = named.failures if named is not None else None
    if named is not None and named.cluster is not None and contents is not None:
        others |= _of_cluster(named.cluster, values, source, places, contents)
    parameters = _checked(CellParameters, others, source, places, is_whole=contents is not None)
    if contents is None or recorded is None or parameters is None:
        return parameters
    text, path = contents.text(recorded.file), str(contents.folder / recorded.file)
    cluster = parameters.cluster
    brokers = range(parameters.brokers) if cluster is None else cluster.brokers
    failures = record(recorded, text, path, brokers, parameters.duration_ms)
    return CellParameters.model_validate(dict(parameters) | {"failures": failures})


Model = TypeVar("Model", bound=WrittenModel)


def _checked(
    model: type[Model], values: Combination, source: str, places: Mapping[str, str], is_whole: bool = True
) -> Model | None:
    """The model of a file's values; None for values that exclude each other, unless they are whole."""
    try:
        return validated(model, values, source)
    except InputError as error:
        name, *within = error.field.split(".", 1)
        cause = error.__cause__
        excluded = isinstance(cause, ValidationError) and not first_error(cause)["loc"]
        if excluded and not is_whole:
            return None
        found = shown(values[name]) if excluded and name in values else error.found
        place = name if name in TOP_LEVEL else places.get(name, f"base.{name}")
        raise InputError(source, ".".join((place, *within)), found, error.allowed) from error


def _of_cluster(
    file: ClusterFile, values: Combination, source: str, places: Mapping[str, str], contents: Contents
) -> Combination:
    """The cluster with its placement, and the parameters that follow from it."""
    of_topics = {name: value for name, value in values.items() if name in cluster.TAKEN}
    read = _checked(CellParameters, of_topics | {"brokers": MOST_BROKERS}, source, places)
    known = {name: getattr(read, name) for name in cluster.TAKEN}
    given = {name: known.get(name, value) for name, value in values.items() if name in (*cluster.TAKEN, *cluster.OWN)}

    def text(name: str) -> str:
        return contents.text(name, "the layout of a cluster", LAYOUT_FORM)

    def place(name: str) -> str:
        return places.get(name, f"base.{name}")

    found = cluster.resolve(file, given, known, text, source, place)
    racks = len(found.brokers_by_rack())
    sizes = {"brokers": len(found.brokers), "racks": racks, "partitions": found.partitions}
    return {"cluster": found, **sizes, "replication_factor": found.replication_factor}


def _refuse_duplicates(cells: tuple[Cell, ...], axis: str, source: str) -> None:
    seen: set[CellParameters] = set()
    for cell in cells:
        if cell.parameters in seen:
            raise InputError(source, axis, f"{cell.swept} twice", "combinations that differ")
        seen.add(cell.parameters)
