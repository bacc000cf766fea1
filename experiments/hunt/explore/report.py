"""One search from spec to answer: what is asked, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from experiments.faults.schema import Bounds
from experiments.hunt.explore.controlled_model import STRATEGIES, ControlledModel
from experiments.hunt.explore.search import Search
from experiments.hunt.explore.story import story_of
from experiments.hunt.explore.v3_model import V3Model
from experiments.hunt.mutants.registry import mutated
from experiments.support.build import is_compiled
from experiments.support.errors import InputError
from protocol.config import Generation

NOT_IN_V3 = ("shutdowns", "retries", "failovers", "recoveries")
"""Bounds of events that the search of a cluster of `v3` does not have."""


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """What to search. `bounds` replace the defaults of `Bounds`; `depth` and `max_states` end the search early."""

    brokers: int = 3
    min_isr: int = 2
    generation: Generation = Generation.KIP_966
    mutant: str | None = None
    strategy: str = STRATEGIES[0]
    bounds: Mapping[str, int] = field(default_factory=dict)
    depth: int | None = None
    max_states: int | None = None


@dataclass(frozen=True, slots=True)
class FoundViolation:
    """A shortest counterexample: the invariant, how it is violated, after how many steps, and the story of the path."""

    invariant: str
    detail: str
    steps: int
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`transitions` led to `distinct_states`; `node_states` and `node_steps` were computed by the node code."""

    spec: SearchSpec
    bounds: Bounds
    transitions: int
    distinct_states: int
    node_states: int
    node_steps: int
    depth: int
    complete: bool
    seconds: float
    violation: FoundViolation | None

    def document(self) -> dict[str, object]:
        """The JSON document of `isray explore --json`."""
        spec = self.spec
        return {
            "brokers": spec.brokers,
            "min_insync_replicas": spec.min_isr,
            "generation": spec.generation.value,
            "mutant": spec.mutant,
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


def run(spec: SearchSpec, progress: Callable[[Search], None] | None = None) -> Report:
    """Runs a search. InputError for an unknown mutant, a min ISR above the number of brokers, or a bound on what is not
    searched in this generation; and in a compiled build, whose nodes do not show their attributes.
    """
    if is_compiled():
        raise InputError("this build", "", "compiled", "the interpreted sources, whose states can be compared")
    if spec.min_isr > spec.brokers:
        raise InputError("--min-isr", "", spec.min_isr, f"1 to {spec.brokers}, the number of brokers")
    bounds, has_store = Bounds(**spec.bounds), spec.generation.features.metadata_in_store
    for name in NOT_IN_V3 if has_store else ():
        if spec.bounds.get(name):
            raise InputError("--bounds", "", f"{name}={spec.bounds[name]}", f"{name}=0 in v3")
    if bounds.recoveries and not spec.generation.features.unclean_recovery:
        raise InputError("--bounds", "", f"recoveries={bounds.recoveries}", "recoveries=0 before kip-966")
    begin = time.perf_counter()
    with mutated(spec.mutant):
        model = (
            V3Model(spec.generation, spec.brokers, spec.min_isr, bounds)
            if has_store
            else ControlledModel(spec.generation, spec.brokers, spec.min_isr, bounds, spec.strategy)
        )
        search = Search(model).run(spec.depth, spec.max_states, progress)
        seconds = time.perf_counter() - begin
        violation = None
        if search.counterexample is not None:
            path, story = search.counterexample.path, tuple(story_of(model, search.counterexample))
            invariant, _, detail = search.counterexample.wrong.partition(": ")
            violation = FoundViolation(invariant, detail, len(path), story)
    return Report(
        spec=spec,
        bounds=bounds,
        transitions=search.transitions,
        distinct_states=search.states,
        **model.machines.sizes(),
        depth=search.depth,
        complete=search.complete,
        seconds=seconds,
        violation=violation,
    )
