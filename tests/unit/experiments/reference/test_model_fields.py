"""Fields of models in words, as the generated pages show them."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from experiments.reference.markdown import field_table, type_words
from experiments.support.fields import DurationMs


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "whole number"),
        (str | None, "text"),
        (Annotated[list[int], "checked"], "list of whole numbers"),
        (list[list[int]], "list of list of whole numbers"),
        (Literal["none", 1], "`none`, `1`"),
        (Literal[True] | None, "`true`"),
        (dict[int, str], "mapping of whole number to text"),
        (tuple[int, ...], "list of whole numbers"),
        (Literal["all"] | int, "`all`, whole number"),
    ],
)
def test_types_have_words(annotation: object, words: str) -> None:
    assert type_words(annotation) == words


class Example(BaseModel):
    source: int = Field(alias="from", description="where from")
    within: DurationMs = Field(default=1_500, description="how long")
    cancel: bool = False
    hidden: int = 0


def test_a_field_has_its_name_in_files_its_type_default_and_meaning() -> None:
    assert field_table(Example, {"hidden"}).splitlines()[2:] == [
        "| `from` | whole number | required | where from |",
        "| `within` | duration (`250ms`, `5s`, `1h`) | `1500ms` | how long |",
        "| `cancel` | true or false | `false` |  |",
    ]
    assert field_table(Example, Example.model_fields) == ""
