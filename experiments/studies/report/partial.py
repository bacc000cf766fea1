"""Which settings of an interrupted sweep have fewer trials than the study asks for.

An analysis takes the trials that are complete. Those that take long are missing more often, which may bias the answer
as long as the sweep is not complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.studies.design.study import StudyPlan


class Partial(NamedTuple):
    """A setting with `trials` of the `wanted` ones."""

    setting: str
    trials: int
    wanted: int


def partial(study: StudyPlan, names: Sequence[str], trials: Sequence[int], damaged: Mapping[str, int]) -> list[Partial]:
    """The settings that lack trials for another reason than damaged files. By cell: `names`, and complete `trials`;
    `damaged`: trials in files that are left out, by name. A study with `precision` has no number of trials to lack: its
    report says which precision is missed."""
    if study.precision is not None:
        return []
    found = (Partial(name, count, study.max_trials) for name, count in zip(names, trials, strict=True))
    return [each for each in found if each.trials + damaged.get(each.setting, 0) < each.wanted]
