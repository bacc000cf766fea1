"""What a scenario may name in generation `v3`, whose metadata are in a store, and what in the others only there.

`v3` has a store and a controller that is a broker. It has no quorum, no ELR, no features whose level could be changed,
no configs that change, and no registrations that outlive a session.
"""

from __future__ import annotations

from experiments.scenarios.expectation_model import Expectation
from experiments.scenarios.model import LinkStep, NodeStep, Scenario, Step
from experiments.support.errors import InputError, shown
from protocol.config import CONFIGS, Generation

_NOT_IN_V3 = ("configure", "update_feature", "unregister", "add_voter", "remove_voter")
_EXPECTED_OF_OTHERS = ("elr", "last_known_elr", "last_known_leader", "voters", "role")
_EXPECTED_OF_V3 = ("controller_broker", "controller_epoch")
_NOT_V3 = "a generation other than v3"


def require_v3(scenario: Scenario, source: str) -> None:
    """InputError where a scenario of generation `v3` names what that does not have."""
    cluster = scenario.cluster
    for name in ("controllers", "voters"):
        if name in cluster.model_fields_set:
            found, allowed = shown(getattr(cluster, name)), "nothing: in v3 a broker is controller"
            raise InputError(source, f"cluster.{name}", found, allowed)
    for place, names in _configs(scenario).items():
        for name in names:
            generations = CONFIGS[name].generations
            if Generation.V3 not in generations:
                allowed = f"generations {', '.join(generation.value for generation in generations)}"
                raise InputError(source, f"{place}.{name}", Generation.V3.value, allowed)
    for index, step in enumerate(scenario.steps):
        _require_step_of_v3(step, source, f"steps[{index}].{step.kind}")


def _require_step_of_v3(step: Step, source: str, place: str) -> None:
    fields = step.fields
    if step.kind in _NOT_IN_V3:
        raise InputError(source, place, Generation.V3.value, _NOT_V3)
    if isinstance(fields, NodeStep) and (fields.urm or fields.controller is not None):
        raise InputError(source, place, "a node that v3 does not have", "broker or store")
    if isinstance(fields, LinkStep) and not {"controllers", "urm"}.isdisjoint(fields.sides):
        raise InputError(source, place, list(fields.sides), "a broker id, store or rest")
    if isinstance(fields, Expectation):
        _forbid(fields, (*_EXPECTED_OF_OTHERS, "controller"), source, place, _NOT_V3)


def forbid_v3(scenario: Scenario, source: str) -> None:
    """InputError where a scenario of another generation names what only `v3` has."""
    if scenario.cluster.store is not None:
        raise InputError(source, "cluster.store", scenario.cluster.generation, "generation v3")
    for place, names in _configs(scenario).items():
        for name in names:
            if CONFIGS[name].generations == (Generation.V3,):
                raise InputError(source, f"{place}.{name}", scenario.cluster.generation, "generation v3")
    for index, step in enumerate(scenario.steps):
        place, fields = f"steps[{index}].{step.kind}", step.fields
        names_store = (isinstance(fields, NodeStep) and fields.store) or (
            isinstance(fields, LinkStep) and "store" in fields.sides
        )
        if step.kind == "expire" or names_store:
            raise InputError(source, place, scenario.cluster.generation, "generation v3")
        if isinstance(fields, Expectation):
            _forbid(fields, _EXPECTED_OF_V3, source, place, "generation v3")


def _configs(scenario: Scenario) -> dict[str, list[str]]:
    """The configs that a scenario sets at first, by their place in the file."""
    topics = {f"topics[{index}].config": list(topic.config) for index, topic in enumerate(scenario.topics)}
    return {"cluster.config": list(scenario.cluster.config), **topics}


def _forbid(fields: Expectation, names: tuple[str, ...], source: str, place: str, allowed: str) -> None:
    for name in names:
        if getattr(fields, name) is not None:
            raise InputError(source, f"{place}.{name}", shown(getattr(fields, name)), allowed)
