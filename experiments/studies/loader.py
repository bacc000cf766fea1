"""Study files: YAML in, :class:`~experiments.studies.model.Study` out, or one line that says what is wrong.

The format is the project's interfaces, section 2. Its vocabulary is the table :data:`PARAMETERS`: the name users
write, the field of :class:`CellParameters` that it becomes, and how its value is read. A parameter may stand in
`base`, or as an axis of `sweep` (every combination), of `zip` (lists of equal length, taken side by side) or in each
entry of `cells`.

Every cell is checked as a whole before the first trial runs, so that a sweep cannot fail on its last cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from experiments.studies.model import Cell, CellParameters, Distribution, Precision, Study
from experiments.support.durations import parse_duration_ms
from experiments.support.errors import InputError
from experiments.support.yaml_input import allowed_by, read_yaml_mapping

Combination = dict[str, object]


class _StudyFile(BaseModel):
    """The file as written; combinations and parameters are checked one by one afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    question: str | None = None
    engine: Literal["sim"] = "sim"
    seed: int = Field(default=0, ge=0)
    trials: int | None = Field(default=None, ge=1)
    precision: Precision | None = None
    duration: str = "1y"
    base: dict[str, object] = {}
    sweep: dict[str, list[object]] | None = None
    zip: dict[str, list[object]] | None = None
    cells: list[dict[str, object]] | None = None


def _as_is(value: object) -> object:
    return value


def _acks(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _duration_or(word: str) -> Callable[[object], object]:
    def read(value: object) -> object:
        if value == word:
            return None
        try:
            return parse_duration_ms(value)
        except ValueError as error:
            raise ValueError(f"{error}; or {word}") from error

    return read


def _distribution(value: object) -> object:
    if not isinstance(value, dict):
        return Distribution(mean_ms=parse_duration_ms(value))
    fields = dict(value)
    fields["mean_ms"] = parse_duration_ms(fields.pop("mean", None))
    return Distribution.model_validate(fields, strict=True)


PARAMETERS: Mapping[str, tuple[str, Callable[[object], object]]] = {
    "generation": ("generation", _as_is),
    "brokers": ("brokers", _as_is),
    "partitions": ("partitions", _as_is),
    "replication_factor": ("replication_factor", _as_is),
    "min_insync_replicas": ("min_insync_replicas", _as_is),
    "unclean_recovery_strategy": ("unclean_recovery_strategy", _as_is),
    "acks": ("acks", _acks),
    "broker_mttf": ("broker_mttf", _distribution),
    "broker_mttr": ("broker_mttr", _distribution),
    "unclean_probability": ("unclean_probability", _as_is),
    "tail_loss_probability": ("tail_loss_probability", _as_is),
    "detection": ("detection_ms", _duration_or("instant")),
    "flush_interval": ("flush_interval_ms", _duration_or("never")),
    "power_events_per_year": ("power_events_per_year", _as_is),
}
"""What a study file may set or sweep: name in the file -> (field of CellParameters, reader of its value)."""

_FILE_NAMES = {field: name for name, (field, _) in PARAMETERS.items()} | {"duration_ms": "duration"}
_PARAMETER_NAMES = ", ".join(PARAMETERS)


def load_study(path: Path, trials: int | None = None, engine: str | None = None) -> Study:
    """The study in `path`. `trials` (per cell) replaces the file's `trials` or `precision`; `engine` the file's engine.

    Raises InputError for everything that is wrong with file or overrides.
    """
    raw = read_yaml_mapping(path, "a study file")
    if engine is not None:
        if engine != "sim":
            raise InputError("--engine", "", engine, "sim (studies run on sim in this version)")
        raw["engine"] = engine
    if trials is not None:
        if trials < 1:
            raise InputError("--trials", "", trials, "a whole number from 1")
        raw.pop("precision", None)
        raw["trials"] = trials
    return study_from(raw, str(path))


def study_from(raw: dict[str, object], source: str) -> Study:
    """The study described by the mapping `raw`; `source` names it in errors. Raises InputError."""
    try:
        file = _StudyFile.model_validate(raw)
    except ValidationError as error:
        raise _input_error(source, error.errors()[0], ()) from error
    if (file.trials is None) == (file.precision is None):
        found = "neither" if file.trials is None else "both"
        raise InputError(source, "trials", found, "either trials or precision")
    axis, combinations = _combinations(file, source)
    base = {**file.base, "duration": file.duration}
    _resolve(base, source, lambda name: name if name == "duration" else f"base.{name}", whole=False)
    cells = tuple(_cell(index, base, combination, axis, source) for index, combination in enumerate(combinations))
    _refuse_twins(cells, axis, source)
    return Study(
        name=file.name,
        question=file.question,
        engine=file.engine,
        seed=file.seed,
        trials=file.trials,
        precision=file.precision,
        cells=cells,
        source=raw,
    )


def _combinations(file: _StudyFile, source: str) -> tuple[str, list[Combination]]:
    """The name of the section that lists the combinations, and the combinations in the order of the file."""
    given = [name for name in ("sweep", "zip", "cells") if getattr(file, name) is not None]
    if len(given) > 1:
        raise InputError(source, given[1], " and ".join(given), "one of sweep, zip and cells")
    if not given:
        return "base", [{}]
    if file.cells is not None:
        return "cells", _listed(file.cells, source)
    axes = file.sweep if file.sweep is not None else file.zip
    assert axes is not None
    _check_axes(axes, given[0], source)
    if file.sweep is not None:
        rows: Iterable[tuple[object, ...]] = itertools.product(*axes.values())
    else:
        lengths = {name: len(values) for name, values in axes.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(source, "zip", f"lengths {lengths}", "lists of equal length")
        rows = zip(*axes.values(), strict=True)
    return given[0], [dict(zip(axes, row, strict=True)) for row in rows]


def _check_axes(axes: dict[str, list[object]], section: str, source: str) -> None:
    if not axes:
        raise InputError(source, section, "no parameter", f"one or more of {_PARAMETER_NAMES}")
    for name, values in axes.items():
        if name not in PARAMETERS:
            raise InputError(source, f"{section}.{name}", "an unknown parameter", _PARAMETER_NAMES)
        if not values:
            raise InputError(source, f"{section}.{name}", "an empty list", "one value or more")


def _listed(cells: list[dict[str, object]], source: str) -> list[Combination]:
    if not cells or not cells[0]:
        raise InputError(source, "cells", "no combination", "one or more mappings of parameters")
    for index, cell in enumerate(cells):
        for name in cell:
            if name not in PARAMETERS:
                raise InputError(source, f"cells[{index}].{name}", "an unknown parameter", _PARAMETER_NAMES)
        if set(cell) != set(cells[0]):
            raise InputError(source, f"cells[{index}]", ", ".join(cell) or "nothing", f"exactly {', '.join(cells[0])}")
    return [{name: cell[name] for name in cells[0]} for cell in cells]


def _cell(index: int, base: Combination, combination: Combination, axis: str, source: str) -> Cell:
    section = f"cells[{index}]" if axis == "cells" else axis

    def place(name: str) -> str:
        if name == "duration":
            return name
        return f"{section}.{name}" if name in combination else f"base.{name}"

    parameters = _resolve(base | combination, source, place, whole=True)
    assert parameters is not None
    return Cell(index=index, swept=combination, parameters=parameters)


def _resolve(values: Combination, source: str, place: Callable[[str], str], whole: bool) -> CellParameters | None:
    """Parameters from a file's values; `place` says where in the file a parameter stands. With `whole` False only
    single values are judged, not whether they fit together (an axis may still replace one): the answer is then of no
    use."""
    fields: dict[str, object] = {}
    for name, value in values.items():
        if name != "duration" and name not in PARAMETERS:
            raise InputError(source, place(name), "an unknown parameter", _PARAMETER_NAMES)
        field, read = PARAMETERS.get(name, ("duration_ms", parse_duration_ms))
        try:
            fields[field] = read(value)
        except ValidationError as error:
            raise _input_error(source, error.errors()[0], (place(name),)) from error
        except ValueError as error:
            raise InputError(source, place(name), repr(value), str(error).partition("allowed: ")[2]) from error
    try:
        return CellParameters.model_validate(fields, strict=True)
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"]:
                name = _FILE_NAMES[str(detail["loc"][0])]
                raise _input_error(source, {**detail, "loc": detail["loc"][1:]}, (place(name),)) from error
        if whole:
            found = values.get("replication_factor", CellParameters.model_fields["replication_factor"].default)
            brokers = values.get("brokers", CellParameters.model_fields["brokers"].default)
            field = place("replication_factor")
            raise InputError(source, field, found, f"at most the number of brokers ({brokers})") from error
    return None


def _refuse_twins(cells: tuple[Cell, ...], axis: str, source: str) -> None:
    seen: dict[CellParameters, Cell] = {}
    for cell in cells:
        if cell.parameters in seen:
            raise InputError(source, axis, f"{cell.swept} twice", "combinations that differ")
        seen[cell.parameters] = cell


def _input_error(source: str, detail: ErrorDetails, prefix: tuple[str, ...]) -> InputError:
    """The first complaint of pydantic as one line: where, what was found, what is allowed."""
    field = ".".join([*prefix, *(str(part) for part in detail["loc"])])
    model: type[BaseModel] = Precision if detail["loc"][:1] == ("precision",) else _StudyFile
    names = ["dist", "mean", "shape"] if prefix else list(model.model_fields)
    found = {"missing": "nothing", "extra_forbidden": "an unknown field"}.get(detail["type"], repr(detail["input"]))
    return InputError(source, field, found, allowed_by(detail, names))
