"""The declaration of a study parameter, and what follows from it.

A parameter is declared once, as a field of `CellParameters` (`model.py`): by its name, its Python type, with a notation
(`experiments/support/fields.py`) if study files write its values in another form, and :func:`parameter`. From that
:func:`parameters` derives what the report and the reference page say. A field `x_ms` is the parameter `x`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import Field, JsonValue

from experiments.support.fields import Notation, WrittenModel, allowed_values


@dataclass(frozen=True, slots=True)
class Parameter:
    """`name` in a study file, `field` of the model; `default`, `allowed`: as in files; `whole`: whole numbers."""

    name: str
    field: str
    notation: Notation
    words: str
    unit: str
    default: str
    allowed: str
    description: str
    whole: bool


T = TypeVar("T")


def parameter(
    default: T,
    words: str,
    description: str,
    unit: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> T:
    """The declaration of a parameter, as the default of a field; `ge`, `gt` and `le` are its limits.

    `words`: the name of a value in reports and tables, with `{}` in its place (`min ISR {}`); `unit`: of plain numbers.
    """
    extra: dict[str, JsonValue] = {"words": words, "unit": unit}
    return Field(default, description=description, json_schema_extra=extra, ge=ge, gt=gt, le=le)


def parameters(model: type[WrittenModel]) -> Mapping[str, Parameter]:
    """Every parameter that `model` declares, by its name in a study file, in the order of declaration."""
    declared, notations = {}, model.notations()
    for (name, schema), field in zip(model.model_json_schema()["properties"].items(), model.model_fields, strict=True):
        notation = notations[name]
        declared[name] = Parameter(
            name=name,
            field=field,
            notation=notation,
            words=schema["words"],
            unit=schema["unit"] or ("duration" if notation.form else ""),
            default=notation.write(model.model_fields[field].default),
            allowed=allowed_values(schema, notation),
            description=schema["description"],
            whole=schema.get("type") == "integer" and not notation.form,
        )
    return declared
