"""What a page steers: `World`, whatever the cluster is. A simulated one has virtual time and goes back, a running one
does neither. What a world cannot do is `unavailable`, with the reason, which the page shows at the button.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

RawStep = Mapping[str, object]
"""A step as scenario files have it: a mapping with one key."""


class RefusedError(Exception):
    """An action that the state does not allow; the message says why. Nothing was done."""


class World(Protocol):
    """A cluster that a page steers. Steps are mappings with one key, as in scenario files."""

    @property
    def unavailable(self) -> Mapping[str, str]:
        """The commands that this world never carries out, and why."""

    @property
    def is_live(self) -> bool:
        """Whether time passes by itself, so that the world is looked at all the time."""

    def follow(self, seen: Callable[[], None]) -> None:
        """Has `seen` called while an action of a live world waits, when its state was looked at again."""

    def act(self, step: RawStep) -> str:
        """Carries out an action; returns what was answered. RefusedError where the state does not allow it."""

    def advance(self, duration_ms: int) -> None:
        """Lets time pass; a running cluster has its own time, and is looked at."""

    def step(self) -> str:
        """Carries out the next step that is ahead, or lets a second pass. RefusedError where the step fails."""

    def rewind(self, count: int) -> None:
        """Back to the state after the first `count` steps; those behind are ahead then."""

    def back(self) -> None:
        """Back to the state before the last step. RefusedError at the start."""

    def load(self, text: str, seed: int) -> World:
        """The world of a scenario file, with all of its steps ahead. RefusedError for a wrong one."""

    def lesson(self, name: str) -> World:
        """The world at the beginning of a lesson; without a name, that of free play. RefusedError for a wrong one."""

    def answer(self) -> None:
        """Back to the beginning of the lesson, with the steps of its answer ahead. RefusedError without a lesson."""

    def scenario(self) -> str:
        """What was done as a scenario file. RefusedError while nothing was done."""

    def has_steps_ahead(self) -> bool:
        """Whether `step` carries out a step rather than letting time pass."""

    def state(self) -> dict[str, object]:
        """The state as JSON has it."""
