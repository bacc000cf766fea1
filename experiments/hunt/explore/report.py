"""One search from question to answer: what is asked, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.faults.schema import Bounds
from experiments.hunt.explore.model import Model
from experiments.hunt.explore.search import Search
from experiments.hunt.explore.telling import story_of
from experiments.hunt.mutants.registry import mutated
from experiments.support.errors import InputError
from protocol.config import Generation


@dataclass(frozen=True, slots=True)
class Question:
    """What to search. `bounds` replace those of `Bounds` by name; `depth` and `max_states` end the search early."""

    brokers: int = 3
    min_isr: int = 2
    generation: Generation = Generation.KIP_966
    mutant: str | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)
    depth: int | None = None
    max_states: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A shortest counterexample: which invariant, in what way, after how many steps, and how it came to that."""

    invariant: str
    detail: str
    steps: int
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a search has found. `transitions` led to `distinct_states` states; `node_states` and `node_steps` are those
    that the node code computed.
    """

    question: Question
    bounds: Bounds
    transitions: int
    distinct_states: int
    node_states: int
    node_steps: int
    depth: int
    complete: bool
    seconds: float
    violation: Found | None

    def document(self) -> dict[str, Any]:
        """As `isray explore --json` prints it."""
        question = self.question
        return {
            "brokers": question.brokers,
            "min_insync_replicas": question.min_isr,
            "generation": question.generation.value,
            "mutant": question.mutant,
            "bounds": self.bounds.model_dump(),
            "states": self.transitions + 1,
            "distinct_states": self.distinct_states,
            "states_per_second": round((self.transitions + 1) / max(self.seconds, 1e-9)),
            "node_states": self.node_states,
            "node_steps": self.node_steps,
            "depth": self.depth,
            "complete": self.complete,
            "seconds": round(self.seconds, 3),
            "violation": None if self.violation is None else asdict(self.violation),
        }


def run(question: Question, progress: Callable[[Search], None] | None = None) -> Report:
    """Searches; InputError for a mutant that does not exist, or more in-sync replicas than brokers."""
    if question.min_isr > question.brokers:
        raise InputError("--min-isr", "", question.min_isr, f"1 to {question.brokers}, the number of brokers")
    bounds = Bounds(**question.bounds)
    begin = time.perf_counter()
    with mutated(question.mutant):
        model = Model(question.generation, question.brokers, question.min_isr, bounds)
        search = Search(model).run(question.depth, question.max_states, progress)
        seconds = time.perf_counter() - begin
        violation = _found(model, search)
    sizes = model.machines.sizes()
    return Report(
        question=question,
        bounds=bounds,
        transitions=search.transitions,
        distinct_states=search.states,
        node_states=sizes["node_states"],
        node_steps=sizes["node_steps"],
        depth=search.depth,
        complete=search.complete,
        seconds=seconds,
        violation=violation,
    )


def _found(model: Model, search: Search) -> Found | None:
    found = search.counterexample
    if found is None:
        return None
    detail = found.wrong.partition(": ")[2]
    return Found(found.invariant, detail, len(found.path), tuple(story_of(model, found)))
