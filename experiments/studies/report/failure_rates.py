"""How harsh the failures of a study are, beside those of the presets, whose sources are published.

With frequent failures a study has losses to count, but rates far above those of an ordinary cluster: by how much?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import rack_sizes
from experiments.studies.design.presets import PRESETS
from experiments.studies.report.words import number


@dataclass(frozen=True, slots=True)
class FailureRates:
    """Failures of one broker in a year: all, those that lose the unflushed end of its logs, and those that lose its
    disk. `down_ms`: the mean time down after an own failure. `source`: the kind of numbers, empty for a study's."""

    name: str
    failures: float
    losing_tail: float
    losing_disk: float
    down_ms: int
    source: str = ""


def failure_rates(name: str, params: CellParameters, source: str = "") -> FailureRates | None:
    """The failures of a cell; None where they are recorded in a file, which has no rates."""
    if params.failures is not None:
        return None
    sizes, mttf = rack_sizes(params), params.broker_mttf
    own = 0.0 if mttf is None else YEAR_MS / (mttf.mean_ms + params.broker_mttr.mean_ms)
    bursts = sum(burst.events_per_year(sizes) * burst.struck_of(sizes) for burst in params.burst) / params.brokers
    named = sum(cause.per_year for cause in params.power)
    power = params.power_events_per_year + params.rack_power_events_per_year
    unclean = (own + bursts) * params.unclean_probability
    disk = unclean * params.disk_loss_probability
    lost = (unclean - disk) * params.tail_loss_probability + power * params.tail_lost_with_power
    tail = params.tail_lost_with_power
    lost += sum(cause.per_year * (tail if cause.loss is None else cause.loss) for cause in params.power)
    return FailureRates(name, own + bursts + power + named, lost, disk, params.broker_mttr.mean_ms, source)


def beside_published(named: Sequence[tuple[str, CellParameters]]) -> list[FailureRates]:
    """The failures of the cells, by name, and of the presets that none of them has, the most frequent first."""
    used = {params.preset for _, params in named}
    published = [
        _of_preset(name, preset.compared_as)
        for name, preset in PRESETS.items()
        if preset.compared_as and name not in used
    ]
    rows = [*(failure_rates(name, params) for name, params in named), *published]
    return sorted((each for each in rows if each is not None), key=lambda each: -each.failures)


def _of_preset(name: str, source: str = "") -> FailureRates | None:
    return failure_rates(name, CellParameters.model_validate({"preset": name, "brokers": 3}), source)


def in_comparison(named: Sequence[tuple[str, CellParameters]]) -> str:
    """One sentence on how far the harshest of the cells is from a published rate of failures; empty without rates."""
    mine = [found for name, params in named if (found := failure_rates(name, params)) is not None]
    if not mine:
        return ""
    worst = max(mine, key=lambda each: each.failures)
    google = _of_preset("ford-2010")
    assert google is not None
    ratio = worst.failures / google.failures
    compared = f"{number(ratio)} times as often as a node of Google's storage clusters did in 2010"
    where = f" with {worst.name}" if len(mine) > 1 else ""
    harsh = "harsh" if ratio >= 2.0 else "ordinary" if ratio >= 0.1 else "mild"
    return (
        f"These failures are {harsh}: a broker fails {number(worst.failures)} times a year{where}, {compared}. "
        "Rates of losses grow with the failures much faster than in proportion, since several have to coincide; the "
        "comparison between settings is what carries over first."
    )
