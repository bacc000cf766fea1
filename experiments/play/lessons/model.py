"""Guided lessons: a text, a task, and goals, which are predicates on what the page shows and on the last step.

The cluster of a lesson is that of its answer, a scenario file of the same name; the lesson begins after the first
`given` steps of it. Goals are reached in their order: each one counts from the first situation on in which it holds
after all before it were reached, and stays reached. So progress is a fold over the situations of a run, and going back
in time takes it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field, model_validator

from experiments.play.world import RawStep
from experiments.scenarios.loader import load_scenario
from experiments.support.errors import InputError
from experiments.support.fields import StrictModel
from experiments.support.yaml_input import read_yaml_mapping, validated
from protocol.errors import did_you_mean

FOLDER = Path(__file__).parent
ANSWERS = FOLDER / "answers"
_Name = Annotated[str, Field(pattern=r"^[a-z0-9_.-]+-[0-9]+$")]
_Counted = Literal["acknowledged", "lost_acked", "high_watermark", "leader_epoch"]
_Shown = (
    _Counted
    | Literal[
        "leader", "isr", "elr", "last_known_elr", "replicas", "leader_recovery_state", "min_isr", "last_known_leader"
    ]
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What goals are about: partitions by name as the page has them, the words that describe each node (`up`, `fenced`,
    `follower`, ...), the ids of the quorum's voters, and the step that was carried out last, None where time passed.
    """

    partitions: Mapping[str, Mapping[str, object]]
    nodes: Mapping[str, frozenset[str]]
    voters: Sequence[int]
    step: RawStep | None = None


class Goal(StrictModel):
    """A goal holds where all that it names does."""

    text: str = Field(min_length=1)
    partitions: dict[_Name, dict[_Shown, object]] = Field(default_factory=dict)
    at_least: dict[_Name, dict[_Counted, int]] = Field(default_factory=dict)
    nodes: dict[_Name, list[str]] = Field(default_factory=dict)
    voters: list[int] | None = None
    step: dict[str, dict[str, object]] | None = Field(default=None, min_length=1, max_length=1)

    @model_validator(mode="after")
    def _names_something(self) -> Goal:
        if not (self.partitions or self.at_least or self.nodes or self.voters or self.step):
            raise ValueError("allowed: one or more of partitions, at_least, nodes, voters, step")
        return self

    def holds(self, now: Situation) -> bool:
        """Whether the goal holds in a situation. What is not known, such as a loss without a leader, is no number."""
        return (
            all(_has(now.partitions, name, wanted) for name, wanted in self.partitions.items())
            and all(_has_at_least(now.partitions, name, wanted) for name, wanted in self.at_least.items())
            and all({*words} <= now.nodes.get(name, frozenset()) for name, words in self.nodes.items())
            and (self.voters is None or sorted(now.voters) == sorted(self.voters))
            and (self.step is None or _is_such(now.step, self.step))
        )


def _has(partitions: Mapping[str, Mapping[str, object]], name: str, wanted: Mapping[_Shown, object]) -> bool:
    found = partitions.get(name, {})
    return all(key in found and found[key] == value for key, value in wanted.items())


def _has_at_least(partitions: Mapping[str, Mapping[str, object]], name: str, wanted: Mapping[_Counted, int]) -> bool:
    found = partitions.get(name, {})
    return all(isinstance(value := found.get(key), int) and value >= least for key, least in wanted.items())


def _is_such(step: RawStep | None, wanted: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether a step is of the kind that is wanted, and has at least the fields that are."""
    [(kind, fields)] = wanted.items()
    found = None if step is None else step.get(kind)
    return isinstance(found, dict) and all(found.get(name) == value for name, value in fields.items())


def progress(goals: Sequence[Goal], reached: int, now: Situation) -> int:
    """How many goals are reached after a situation, of which `reached` were before it."""
    while reached < len(goals) and goals[reached].holds(now):
        reached += 1
    return reached


class Lesson(StrictModel):
    """A lesson as its file has it. Texts are Markdown without headings: paragraphs, and code in back quotes."""

    order: int = Field(ge=1, description="its place in the menu")
    title: str = Field(min_length=1)
    text: str = Field(min_length=1, description="what is to be learned")
    task: str = Field(min_length=1)
    goals: list[Goal] = Field(min_length=1)
    hints: list[str] = Field(min_length=1)
    conclusion: str = Field(min_length=1, description="shown when all goals are reached")
    given: int = Field(default=0, ge=0, description="steps of the answer that are done when the lesson begins")


@cache
def lessons() -> Mapping[str, Lesson]:
    """The lessons by their names, in the order of the menu."""
    found = {path.stem: _read(path) for path in FOLDER.glob("*.yaml")}
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def _read(path: Path) -> Lesson:
    lesson = validated(Lesson, read_yaml_mapping(path, "a lesson"), str(path))
    load_scenario(answer_file(path.stem))
    return lesson


def answer_file(name: str) -> Path:
    """The scenario that fulfils a lesson."""
    return ANSWERS / f"{name}.yaml"


def answer_of(name: str) -> tuple[dict[str, object], list[RawStep]]:
    """The answer to a lesson: the scenario without its steps, and the steps."""
    raw = read_yaml_mapping(answer_file(name), "a scenario file")
    steps = cast("list[RawStep]", raw.pop("steps"))
    return raw, steps


def lesson_named(name: str, source: str) -> Lesson:
    """The lesson of a name. InputError, which names `source`, where there is none."""
    found = lessons()
    if name not in found:
        raise InputError(source, "", f"{name}{did_you_mean(name, found)}", f"a lesson: {', '.join(found)}")
    return found[name]
