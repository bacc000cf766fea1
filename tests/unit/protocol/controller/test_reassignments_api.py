"""What holds for any reassignments. Examples: `testdata/reassignments.txt`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.partition_change import ChangeRequest, decide
from protocol.metadata.partition import PartitionState, replay_change
from tests.unit.protocol.controller.controller_script import ControllerScript
from tests.unit.protocol.transcripts import listed


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding_replicas or state.removing_replicas)


@given(st.data())
def test_a_cancellation_returns_to_the_original_replicas_after_any_requests(data: st.DataObject) -> None:
    assignments = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)
    script = ControllerScript()
    for command in ("cluster 0-6 fenced=6", "topic"):
        script.run(command)
    first = data.draw(assignments.filter(lambda wanted: not set(wanted) <= {0, 1, 2}))
    for wanted in [first, *data.draw(st.lists(assignments, max_size=3))]:
        assert len(script.run(f"reassign t-0={listed(wanted)}")) == 1, "the records, and no error"
        state = script.bench.partition()
        if not is_moving(state):
            assert set(state.replicas) == set(wanted)
            return
        assert set(state.replicas) - set(state.removing_replicas) == set(wanted)
    script.run("reassign t-0=cancel")
    assert set(script.bench.partition().replicas) == {0, 1, 2}


@st.composite
def moves(draw: st.DrawFn) -> tuple[PartitionState, dict[str, Any]]:
    """A well-formed `kip-966` partition in the middle of a move, and an ISR that its leader proposes."""
    replicas = tuple(draw(st.lists(st.integers(0, 6), min_size=2, max_size=6, unique=True)))
    some = st.lists(st.sampled_from(replicas), unique=True)
    removing = tuple(sorted(draw(some)[: len(replicas) - 1]))
    adding = tuple(sorted(draw(some)[: len(replicas) - 1]))
    min_isr = draw(st.integers(1, len(replicas)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    elr = tuple(sorted(set(draw(some)) - set(isr))) if len(isr) < min_isr else ()
    state = PartitionState(
        replicas, isr, elr, adding_replicas=adding, removing_replicas=removing, leader=isr[0], leader_epoch=3
    )
    proposed = (isr[0], *(broker for broker in draw(some) if broker != isr[0]))
    return state, {"min_isr": min_isr, "target_isr": proposed}


@pytest.mark.covers("E32", "E34", "N30")
@given(moves())
def test_a_completed_reassignment_has_min_isr_replicas_in_sync(case: tuple[PartitionState, dict[str, Any]]) -> None:
    state, fields = case
    request = ChangeRequest(
        is_acceptable_leader=lambda broker: True, elr_enabled=True, track_last_known_leader=True, **fields
    )
    record = decide("topic", 0, state, request)
    found = state if record is None else replay_change(state, record)
    final = set(state.replicas) - set(state.removing_replicas)
    staying = set(fields["target_isr"]) & final
    adding, removing = set(state.adding_replicas), set(state.removing_replicas)
    ready = len(staying) >= min(max(fields["min_isr"], 2 if removing else 1), len(final))
    ready = ready and (final if len(adding) < len(removing) else adding - removing) <= staying
    if not is_moving(state):
        return
    assert is_moving(found) is not ready
    if ready:
        assert (set(found.replicas), set(found.isr)) == (final, staying)
        assert (found.elr, found.last_known_elr) == ((), ())
        assert found.leader in found.isr
        assert found.leader_epoch == 3 + (found.leader != state.leader or bool(state.removing_replicas))
    else:
        assert found.replicas == state.replicas
