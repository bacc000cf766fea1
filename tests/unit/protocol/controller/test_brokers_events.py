"""Registration, fencing, unfencing and controlled shutdown as records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import LOG_GENERATIONS, Generation
from protocol.controller import brokers
from protocol.messages.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from protocol.metadata.partition import PartitionState
from tests.unit.protocol.node_helpers import ControllerBench, config_of, fencing, registrations, topic_records

WITH_ELR = [Generation.KIP_966_ELR, Generation.KIP_966]


def bench(generation: Generation = Generation.KIP_966, min_isr: int = 2, **partition: object) -> ControllerBench:
    fields: dict[str, object] = {"leader_epoch": 5, "partition_epoch": 9} | partition
    records = [*registrations(), *topic_records(min_isr, **fields)]
    return ControllerBench(*records, config=config_of(generation))


def fence(controller: ControllerBench, *ids: int) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    for broker in ids:
        epoch = controller.state.image.broker_epoch(broker)
        assert epoch is not None
        records += controller.apply(brokers.fence(controller.state, broker, epoch))
    return records


def unfence(controller: ControllerBench, broker: int) -> list[MetadataRecord]:
    epoch = controller.state.image.broker_epoch(broker)
    assert epoch is not None
    return list(controller.apply(brokers.unfence(controller.state, broker, epoch)))


def register(controller: ControllerBench, broker: int, clean: bool) -> list[MetadataRecord]:
    known = controller.state.image.broker_epoch(broker)
    previous = known if clean and known is not None else -1
    return list(controller.apply(brokers.register(controller.state, broker, "next", previous, None)))


@pytest.mark.covers("E31", "E29")
def test_fencing_a_leader_elects_another_isr_member_and_fences_last() -> None:
    controller = bench()
    records = fence(controller, 0)
    assert records[-1] == fencing(0, 0, True)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_epoch, found.partition_epoch) == (1, (1, 2), 6, 10)
    assert not controller.state.image.is_active(0)


@pytest.mark.covers("M9", "E13", "E15")
def test_the_first_evicted_is_not_eligible_the_second_is() -> None:
    controller = bench()
    fence(controller, 2)
    assert (controller.partition().isr, controller.partition().elr) == ((0, 1), ())
    fence(controller, 1)
    found = controller.partition()
    assert (found.isr, found.elr, found.leader, found.leader_epoch) == ((0,), (1,), 0, 5)


@pytest.mark.covers("E12", "E24", "M20")
def test_fencing_the_last_member_empties_the_isr_and_records_the_last_known_leader() -> None:
    controller = bench()
    for broker in (2, 1):
        fence(controller, broker)
        assert controller.partition().last_known_leader == -1, "the ISR is not empty"
    fence(controller, 0)
    found = controller.partition()
    assert (found.leader, found.isr, set(found.elr), found.last_known_leader) == (-1, (), {0, 1}, 0)


@pytest.mark.covers("K4")
def test_before_elr_the_last_member_stays_in_the_isr() -> None:
    controller = bench(Generation.KIP_497)
    fence(controller, 2, 1, 0)
    assert (controller.partition().leader, controller.partition().isr) == (-1, (0,))
    unfence(controller, 1)
    assert controller.partition().leader == -1
    unfence(controller, 0)
    assert (controller.partition().leader, controller.partition().isr) == (0, (0,))


@pytest.mark.covers("E17", "E30", "M13", "E31")
@pytest.mark.parametrize("generation", WITH_ELR)
def test_the_first_elr_member_to_be_unfenced_leads(generation: Generation) -> None:
    controller = bench(generation)
    fence(controller, 2, 1, 0)
    epoch = controller.partition().leader_epoch
    unfence(controller, 2)
    assert controller.partition().leader == -1, "2 left while min ISR was met: it is not eligible"
    records = unfence(controller, 1)
    assert records[0] == fencing(1, 1, False)
    found = controller.partition()
    assert (found.leader, found.isr, found.elr, found.leader_epoch) == (1, (1,), (0,), epoch + 1)
    assert found.last_known_leader == -1


@pytest.mark.covers("M14", "E21", "E31")
def test_a_clean_restart_keeps_an_elr_member_eligible() -> None:
    controller = bench()
    fence(controller, 2, 1, 0)
    records = register(controller, 1, clean=True)
    assert [type(record) for record in records] == [RegisterBrokerRecord]
    assert set(controller.partition().elr) == {0, 1}
    unfence(controller, 1)
    assert controller.partition().leader == 1


@pytest.mark.covers("M15", "E18", "E20", "E21", "N29")
def test_an_unclean_restart_moves_an_elr_member_to_the_last_known_elr() -> None:
    controller = bench()
    fence(controller, 2, 1)
    before = controller.partition()
    [change, registration] = register(controller, 1, clean=False)
    assert isinstance(change, PartitionChangeRecord)
    assert isinstance(registration, RegisterBrokerRecord)
    found = controller.partition()
    assert (found.elr, found.last_known_elr, found.isr, found.leader) == ((), (1,), (0,), 0)
    assert (found.leader_epoch, found.partition_epoch) == (before.leader_epoch, before.partition_epoch + 1)
    unfence(controller, 1)
    fence(controller, 0)
    assert controller.partition().leader == -1, "it is no longer eligible"


@pytest.mark.covers("E21", "M16")
@pytest.mark.parametrize(
    ("previous_epoch", "clean"),
    [(1, True), (0, False), (2, False), (-1, False)],
    ids=["the last epoch", "an earlier one", "one that never was", "none"],
)
def test_a_restart_is_clean_only_with_the_registered_broker_epoch(previous_epoch: int, clean: bool) -> None:
    controller = bench(isr=(0,), eligible_leader_replicas=(1,))
    controller.apply([fencing(1, 1, True)])
    controller.apply(brokers.register(controller.state, 1, "next", previous_epoch, None))
    assert controller.partition().elr == ((1,) if clean else ())


@pytest.mark.covers("E20", "E27")
def test_when_all_brokers_restart_unclean_all_but_the_first_to_leave_are_last_known() -> None:
    controller = bench()
    fence(controller, 0, 1, 2)
    for broker in (0, 1, 2):
        register(controller, broker, clean=False)
    found = controller.partition()
    assert (found.isr, found.elr, found.last_known_elr) == ((), (), (1, 2))


@pytest.mark.covers("E26", "E21")
def test_an_isr_member_that_restarts_unclean_before_it_is_fenced_leaves_the_isr() -> None:
    controller = bench()
    register(controller, 0, clean=False)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_epoch) == (1, (1, 2), 6)
    assert controller.state.image.brokers[0].fenced


@pytest.mark.covers("K7", "N36")
def test_before_elr_a_registration_touches_no_partition() -> None:
    controller = bench(Generation.KIP_497)
    assert [type(record) for record in register(controller, 1, clean=False)] == [RegisterBrokerRecord]


@given(st.lists(st.integers(0, 4), max_size=8))
def test_a_broker_epoch_is_the_offset_of_its_registration(order: list[int]) -> None:
    controller = bench()
    for broker in order:
        before = controller.state.image.broker_epoch(broker)
        register(controller, broker, clean=False)
        epoch = controller.state.image.broker_epoch(broker)
        assert epoch == controller.state.image.next_offset - 1
        assert before is None or epoch > before


@pytest.mark.covers("E31")
def test_controlled_shutdown_moves_the_leadership_while_the_broker_serves() -> None:
    controller = bench()
    records = controller.apply(brokers.begin_controlled_shutdown(controller.state, 0, 0))
    assert records[0] == BrokerRegistrationChangeRecord(broker_id=0, broker_epoch=0, in_controlled_shutdown=True)
    found, registration = controller.partition(), controller.state.image.brokers[0]
    assert (found.leader, found.isr) == (1, (1, 2))
    assert (registration.fenced, registration.in_controlled_shutdown) == (False, True)
    assert not controller.state.has_leaderships(0)


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_events_of_brokers_without_replicas_change_no_partition(generation: Generation) -> None:
    controller = bench(generation, replicas=(0, 1), isr=(0, 1))
    assert fence(controller, 2) == [fencing(2, 2, True)]
    assert unfence(controller, 2) == [fencing(2, 2, False)]


def well_formed(state: PartitionState, min_isr: int) -> None:
    """The shape that every state of a partition with ELR has."""
    isr, elr, known = set(state.isr), set(state.elr), set(state.last_known_elr)
    assert len(isr) == len(state.isr)
    assert not isr & elr
    assert not known & (isr | elr)
    assert isr | elr | known <= set(state.replicas)
    assert len(isr) < min_isr or not (elr or known)
    assert state.leader in isr if state.leader != -1 else not isr


@pytest.mark.covers("E13", "E14", "E17", "E23")
@settings(max_examples=150)
@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["fence", "unfence", "clean"]), st.integers(0, 2))))
def test_without_unclean_shutdowns_min_isr_replicas_can_always_lead(
    min_isr: int, events: list[tuple[str, int]]
) -> None:
    controller = bench(min_isr=min_isr)
    for event, broker in events:
        apply_event(controller, event, broker)
        state = controller.partition()
        well_formed(state, min_isr)
        assert len({*state.isr, *state.elr}) >= min_isr
        candidates = state.isr or state.elr
        assert (state.leader != -1) == any(controller.state.image.is_active(broker) for broker in candidates)


@pytest.mark.covers("E20", "E23", "E26", "E27")
@settings(max_examples=150)
@given(
    st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["fence", "unfence", "clean", "unclean"]), st.integers(0, 2)))
)
def test_with_unclean_shutdowns_min_isr_replicas_stay_known(min_isr: int, events: list[tuple[str, int]]) -> None:
    controller = bench(min_isr=min_isr)
    for event, broker in events:
        before = controller.partition()
        apply_event(controller, event, broker)
        state = controller.partition()
        well_formed(state, min_isr)
        assert len({*state.isr, *state.elr, *state.last_known_elr}) >= min_isr
        assert state.leader_epoch - before.leader_epoch == (state.leader != before.leader)


def apply_event(controller: ControllerBench, event: str, broker: int) -> None:
    if event == "fence" and not controller.state.image.brokers[broker].fenced:
        fence(controller, broker)
    elif event == "unfence" and controller.state.image.brokers[broker].fenced:
        unfence(controller, broker)
    elif event == "clean" and controller.state.image.brokers[broker].fenced:
        register(controller, broker, clean=True)
    elif event == "unclean":
        register(controller, broker, clean=False)
