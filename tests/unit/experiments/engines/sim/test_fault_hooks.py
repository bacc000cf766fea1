"""Faults of the simulator's disks and links."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimLog, SimStorage
from experiments.engines.sim.network import Disturbance, Network, NetworkModel
from protocol.errors import StorageFullError
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.control import BrokerHeartbeatRequest
from protocol.messages.data import FetchRequest

BEAT = BrokerHeartbeatRequest(correlation_id=1, broker_id=0, broker_epoch=1, current_metadata_offset=0)
FETCH = FetchRequest(replica_id=0, replica_epoch=1, partitions=())


def batch(offset: int) -> RecordBatch:
    return RecordBatch(base_offset=offset, record_count=1, payload=b"x")


def disk(flushed: int, records: int) -> tuple[SimStorage, SimLog]:
    storage = SimStorage()
    log = storage.open_log("a")
    for offset in range(records):
        if offset == flushed:
            log.flush()
        log.append(batch(offset))
    if flushed == records:
        log.flush()
    return storage, log


@pytest.mark.parametrize(("flushed", "records", "left"), [(2, 5, 4), (4, 5, 4), (5, 5, 5), (0, 1, 0), (0, 0, 0)])
def test_a_torn_batch_is_the_last_unflushed_one(flushed: int, records: int, left: int) -> None:
    storage, log = disk(flushed, records)
    assert storage.apply_loss(Loss("torn")) == records - left
    assert log.end_offset == left


def test_a_crash_may_lose_any_suffix_of_the_unflushed_part_and_nothing_else() -> None:
    ends = set()
    for seed in range(60):
        storage, log = disk(2, 5)
        storage.apply_loss(Loss("suffix", seed))
        ends.add(log.end_offset)
    assert ends == {2, 3, 4, 5}


def test_a_full_disk_refuses_writes_until_there_is_room() -> None:
    storage, log = disk(1, 1)
    storage.set_full(True)
    with pytest.raises(StorageFullError):
        log.append(batch(1))
    with pytest.raises(StorageFullError):
        storage.open_log("b").append(batch(0))
    with pytest.raises(StorageFullError):
        storage.write_file("f", b"")
    assert log.end_offset == 1
    assert storage.read_file("f") is None
    storage.set_full(False)
    log.append(batch(1))
    storage.open_log("b").append(batch(0))
    assert log.end_offset == 2


# -- links -------------------------------------------------------------------------------------------------------------


def network(*disturbances: Disturbance) -> Network:
    found = Network(7, NetworkModel(1, 0))
    for disturbance in disturbances:
        found.disturb(disturbance)
    return found


def sent(found: Network, now_ms: int, message: Message) -> Sequence[int]:
    """The arrival times of a message from node 0 to node 1."""
    return found.arrivals(now_ms, found.route(0, 1, type(message)))


def test_messages_of_the_disturbed_direction_are_lost_and_those_of_the_other_delivered_once() -> None:
    assert list(sent(network(Disturbance(1, 0, "lose")), 10, FETCH)) == [11]
    assert list(sent(network(Disturbance(0, 1, "lose")), 10, FETCH)) == []


def test_a_duplicate_arrives_later() -> None:
    first, second = sent(network(Disturbance(0, 1, "duplicate", delay_ms=50)), 10, FETCH)
    assert first == 11
    assert 11 <= second <= 61


def test_a_delay_delays_later_messages_too() -> None:
    slow = Disturbance(0, 1, "delay", delay_ms=100)
    found = network(slow)
    assert list(sent(found, 10, FETCH)) == [111]
    found.clear_disturbance(slow)
    assert list(sent(found, 20, FETCH)) == [111]
    assert list(sent(found, 200, FETCH)) == [201]


def test_reordered_messages_are_overtaken() -> None:
    found = network(Disturbance(0, 1, "reorder", delay_ms=100))
    times = [sent(found, now, FETCH)[0] for now in range(20)]
    assert times != sorted(times)
    assert all(now < time <= now + 101 for now, time in enumerate(times))


def test_the_share_of_disturbed_messages_is_kept() -> None:
    found = network(Disturbance(0, 1, "lose", per_mille=200))
    lost = sum(not sent(found, now, FETCH) for now in range(2_000))
    assert 300 < lost < 500


def test_only_the_given_types_are_disturbed() -> None:
    found = network(Disturbance(0, 1, "lose", only=(BrokerHeartbeatRequest,)))
    assert list(sent(found, 10, BEAT)) == []
    assert list(sent(found, 10, FETCH)) == [11]


def test_a_disturbed_pair_is_unsound_until_all_disturbances_end() -> None:
    loss, delay = Disturbance(0, 1, "lose"), Disturbance(0, 1, "delay", delay_ms=5)
    found = network(loss, delay)
    assert not found.is_sound(0, 1, 10)
    assert not found.is_sound(1, 0, 10)
    assert found.is_sound(0, 2, 10)
    found.clear_disturbance(loss)
    assert not found.is_sound(0, 1, 10)
    found.clear_disturbance(delay)
    assert found.is_sound(0, 1, 10)


def test_a_pair_is_unsound_while_a_late_message_is_on_its_way() -> None:
    slow = Disturbance(0, 1, "delay", delay_ms=500)
    found = network(slow)
    (arrival,) = sent(found, 10, FETCH)
    found.clear_disturbance(slow)
    assert not found.is_sound(0, 1, arrival)
    assert not found.is_sound(1, 0, arrival)
    assert found.is_sound(0, 1, arrival + 1)
