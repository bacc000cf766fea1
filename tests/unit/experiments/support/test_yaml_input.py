"""Refused values of users' files: what was found and what is allowed, in words of this project."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import core_schema

from experiments.support.errors import InputError
from experiments.support.yaml_input import allowed_by, found_by, refused_by
from tests.yaml_rows import rows


class Inner(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    records: Annotated[int, Field(ge=1, le=9)] = 1
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    name: Annotated[str, Field(min_length=1, max_length=3, pattern="[a-z]*")] = "a"
    kind: Literal["one", "two"] = "one"
    is_on: bool = True


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    inner: Inner
    items: Annotated[list[Inner], Field(min_length=1, max_length=2)] = [Inner()]
    counts: dict[str, int] = {}


def refused(raw: object, as_json: bool = False) -> str:
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(raw)
    error = refused_by(raised.value, Outer, "f.yaml", as_json=as_json)
    assert isinstance(error, InputError)
    return str(error).removeprefix("f.yaml: ")


@pytest.mark.parametrize(("inner", "line"), rows(__file__, "wrong-values.yaml"))
def test_a_wrong_value_is_shown_with_what_is_allowed(inner: dict[str, Any], line: str) -> None:
    assert refused({"inner": inner}) == f"inner.{line}"


def test_missing_fields_lists_and_mappings() -> None:
    assert refused({}) == "inner: found nothing; allowed: a value (required)"
    assert refused({"inner": {}, "items": []}) == "items: found []; allowed: 1 or more items"
    assert refused({"inner": {}, "items": [{}, {"recods": 1}]}).startswith(
        "items[1].recods: found 1. Did you mean 'records'?"
    )
    assert refused({"inner": {}, "counts": 3}) == "counts: found 3; allowed: a mapping"
    assert refused({"inner": 3}).startswith("inner: found 3; allowed: a mapping of fields: ")


def test_a_json_file_is_answered_in_its_own_notation() -> None:
    assert refused({"inner": {"records": "0"}}, as_json=True) == 'inner.records: found "0"; allowed: a whole number'
    assert refused({"inner": {"records": True}}, as_json=True) == "inner.records: found true; allowed: a whole number"
    assert refused({"inner": {"records": None}}, as_json=True) == "inner.records: found null; allowed: a whole number"
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate_json('{"inner": \n}')
    assert str(refused_by(raised.value, Outer, "f", as_json=True)) == (
        "f: found text that is not JSON, line 2 column 1; allowed: JSON"
    )


def test_a_long_value_is_cut() -> None:
    line = refused({"inner": {"records": "x" * 1_000}})
    assert len(line) < 300
    assert re.search(r"found 'x+\.\.\.; allowed", line)


BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")
CONTEXT = dict.fromkeys((*BOUNDS, "pattern", "expected", "discriminator", "expected_tags", "error"), 7)


@pytest.mark.parametrize("kind", get_args(core_schema.ErrorType))
def test_no_kind_of_error_is_answered_with_the_words_of_the_library(kind: str) -> None:
    details: Any = {"type": kind, "loc": ("records",), "input": 1, "msg": "LIBRARY", "ctx": CONTEXT}
    assert "LIBRARY" not in f"{allowed_by(details)} {found_by(details)}"
