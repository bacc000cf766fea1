"""Failure models by name (`presets.yaml`): calibrations with their source, their numbers, and what each leaves out.

A preset gives values to parameters; a study's own values override them. Numbers are rates per machine as published.
Where a source gives no number, `assumed` says what was taken instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, TypeAdapter

from experiments.studies.design.distribution import DISTRIBUTION, Distribution
from experiments.studies.design.impairments import Isolations, Pauses, PowerCauses, SlowDisks
from experiments.studies.design.mappings import Bursts
from experiments.support.declared import declared
from experiments.support.fields import IN_FILE

PresetName = Literal[
    "none", "ford-2010", "dean-first-year", "hdfs-2010", "cloud-vm-1", "cloud-vm-5", "weekly-crash", "preemptible",
    "isolated-nodes", "gray-failures", "zone-outages",
]  # fmt: skip


CAUSES: Mapping[str, TypeAdapter[Any]] = {
    "isolated": TypeAdapter(Isolations),
    "paused": TypeAdapter(Pauses),
    "slow_disk": TypeAdapter(SlowDisks),
    "power": TypeAdapter(PowerCauses),
    "burst": TypeAdapter(Bursts),
}


def _resolved(parameters: Mapping[str, object]) -> dict[str, object]:
    """The values as `CellParameters` holds them: durations and mappings are distributions, named causes are lists."""
    found = dict(parameters)
    for name, value in parameters.items():
        if name in CAUSES:
            found[name] = CAUSES[name].validate_python(value, context=IN_FILE, by_alias=True)
        elif isinstance(value, str | Mapping):
            found[name] = Distribution.model_validate(DISTRIBUTION.read(value))
    return found


@dataclass(frozen=True, slots=True)
class Preset:
    """`parameters`: values by field of `CellParameters`. `source`, `numbers`: the published ones, and how they become
    parameters. `assumed`: what the source does not give. `leaves_out`: what happens in such clusters and is not
    modelled. `compared_as`: what kind of numbers these are, if reports compare the failures of studies with them."""

    parameters: Annotated[dict[str, object], BeforeValidator(_resolved)]
    source: str
    numbers: str
    assumed: str
    leaves_out: str
    compared_as: str = ""


PRESETS = declared(dict[str, Preset], __file__, "presets.yaml")
assert {"none", *PRESETS} == set(get_args(PresetName))
