"""`immutable` values are compared and hashed by their fields; members of `direct` enumerations are attributes of the
class, and otherwise as the standard library makes them.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from enum import Enum, IntEnum

import pytest

from protocol.broker.lifecycle import LifecycleState
from protocol.errors import ErrorCode
from protocol.metadata.image import BrokerRegistration
from protocol.quorum.election import Role

pytestmark = pytest.mark.unit

ONE = BrokerRegistration(1, 7, "x")


def test_a_value_is_compared_and_hashed_by_its_fields() -> None:
    assert BrokerRegistration(1, 7, "x") == ONE != replace(ONE, fenced=False)
    assert len({ONE, BrokerRegistration(1, 7, "x"), replace(ONE, rack="r")}) == 2


def test_a_value_has_slots_and_nothing_else() -> None:
    assert BrokerRegistration.__slots__ == tuple(field.name for field in fields(BrokerRegistration))
    assert not hasattr(ONE, "__dict__")


@pytest.mark.parametrize("enumeration", [ErrorCode, LifecycleState])
def test_members_are_found_without_a_descriptor(enumeration: type[Enum]) -> None:
    assert all(vars(enumeration)[member.name] is member for member in enumeration)


def test_members_are_hashed_as_they_are_compared() -> None:
    assert hash(LifecycleState.RUNNING) == object.__hash__(LifecycleState.RUNNING)
    assert hash(ErrorCode.NOT_CONTROLLER) == hash(ErrorCode.NOT_CONTROLLER.value)
    assert hash(Role.LEADER) == hash("leader")


@pytest.mark.parametrize("member", [ErrorCode.NOT_CONTROLLER, LifecycleState.RUNNING])
def test_members_are_still_members(member: Enum) -> None:
    kind = type(member)
    assert kind(member.value) is kind[member.name] is getattr(kind, member.name) is member
    assert copy.deepcopy(member) is pickle.loads(pickle.dumps(member)) is member
    assert isinstance(ErrorCode.NONE, IntEnum)
    with pytest.raises(AttributeError, match="cannot reassign member"):
        setattr(kind, member.name, member)
