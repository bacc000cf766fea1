"""The presets of failure models, from `experiments.studies.design.presets`."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.reference.markdown import code, sections, table
from experiments.studies.design.model import PARAMETERS
from experiments.studies.design.presets import PRESETS, Preset

TITLE = "Failure models by name"
SUMMARY = "the values of `preset`, with source, numbers, assumptions and what each leaves out"


def page() -> str:
    return sections(
        "`preset: NAME` in a study sets the parameters below; values that the study gives itself override them. "
        "[failure-models.md](../failure-models.md) explains the parameters.",
        *(part for name, preset in PRESETS.items() for part in _preset(name, preset)),
    )


def _preset(name: str, preset: Preset) -> Iterator[str]:
    yield f"## {name}"
    yield f"Source: {preset.source}."
    yield f"Numbers: {preset.numbers}"
    yield f"Assumed: {preset.assumed}"
    yield f"Left out: {preset.leaves_out}"
    declared = {item.field: item for item in PARAMETERS.values()}
    values = ((declared[field], value) for field, value in preset.parameters.items())
    yield table(("parameter", "value"), ((code(it.name), code(it.notation.write(value))) for it, value in values))
