"""The cells of a study as the report speaks of them: settings under assumptions, in groups.

A *setting* is what an operator decides, an *assumption* what is given (`design/study.py`). The cells of a group
share all assumptions, and only within a group one setting is better than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan, assumed, decided, groups_of
from experiments.studies.estimation.estimates import CellEstimates
from experiments.studies.estimation.pairs import Comparison
from experiments.studies.report.words import cell_name


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell. `index`: in the study. `decided`, `assumed`: its swept parameters; `full_name`: with assumptions."""

    index: int
    decided: dict[str, object]
    assumed: dict[str, object]
    name: str
    full_name: str
    parameters: CellParameters
    estimates: CellEstimates

    def against_reference(self, metric: str) -> Comparison:
        """This setting minus, or divided by, the reference of its group. KeyError if it is the reference itself."""
        return self.estimates.compared_with_reference[metric]


@dataclass(frozen=True, slots=True)
class Group:
    """The settings under the same assumptions, which `name` gives (empty if none is swept)."""

    name: str
    settings: tuple[Setting, ...]

    @property
    def reference(self) -> Setting:
        """The setting that the others are compared with."""
        return next(setting for setting in self.settings if setting.estimates.reference)

    @property
    def recommended(self) -> Setting | None:
        """The setting that is shown to be the best, if one is."""
        return next((setting for setting in self.settings if setting.estimates.recommended), None)

    @property
    def cheapest(self) -> Setting | None:
        """The cheapest setting that meets all targets of the study; None if none is shown to, or there are none."""
        return next((setting for setting in self.settings if setting.estimates.cheapest), None)

    @property
    def advised(self) -> Setting | None:
        """The setting to run: by the targets, if there are any."""
        has_targets = bool(self.settings[0].estimates.targets)
        return self.cheapest if has_targets else self.recommended

    @property
    def undecided(self) -> tuple[Setting, ...]:
        """The settings of which each may be the best."""
        return tuple(setting for setting in self.settings if setting.estimates.may_be_best)

    @property
    def others(self) -> tuple[Setting, ...]:
        """All but the reference, in the order of the study."""
        return tuple(setting for setting in self.settings if not setting.estimates.reference)


def groups(study: StudyPlan, cells: Sequence[CellEstimates]) -> tuple[Group, ...]:
    """The cells of `study`, whose numbers are `cells` in their order, by assumptions."""
    settings = [
        Setting(
            index,
            decided(cell.swept),
            assumed(cell.swept),
            cell_name(decided(cell.swept)),
            cell_name(cell.swept),
            cell.parameters,
            estimates,
        )
        for index, (cell, estimates) in enumerate(zip(study.cells, cells, strict=True))
    ]
    found = [tuple(settings[position] for position in positions) for positions in groups_of(study.cells)]
    return tuple(Group(cell_name(each[0].assumed) if each[0].assumed else "", each) for each in found)
