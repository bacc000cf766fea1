"""Keys are equal exactly where states are, and copies are independent (experiments/hunt/explore)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from inspect import getsource
from pkgutil import walk_packages
from typing import ClassVar

import pytest

import protocol
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.disk import SimStorage
from experiments.hunt.explore.copies import copy_of
from experiments.hunt.explore.machines import DeadBroker, Machines
from experiments.hunt.explore.states import Channels, packing
from experiments.hunt.explore.values import Keys, not_state
from protocol.messages.batch import RecordBatch
from tests.unit.protocol.node_helpers import BrokerBench, topic_records


@dataclass(slots=True)
class _Pair:
    left: object
    right: object


@dataclass(slots=True)
class _Left(_Pair):
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"right"})


def key(thing: object) -> object:
    return Keys().key(thing)


def test_shared_objects_and_equal_values_have_equal_keys() -> None:
    shared = (1, 2)
    assert key(_Pair(shared, shared)) == key(_Pair((1, 2), tuple(range(1, 3))))


def test_sets_have_no_order_and_dicts_have_one() -> None:
    assert key({3, 1, 2}) == key({2, 3, 1})
    assert key({"a": 1, "b": 2}) != key({"b": 2, "a": 1})


def test_cycles_end() -> None:
    pair, other = _Pair(None, 1), _Pair(None, 1)
    pair.left, other.left = pair, other
    assert key(pair) == key(other)
    other.right = 2
    assert key(pair) != key(other)


def test_every_attribute_counts_but_those_left_out() -> None:
    pair = _Pair(1, 2)
    assert key(pair) != key(_Pair(1, 3))
    assert key(_Left(1, 2)) == key(_Left(1, 3))
    assert key(_Left(1, 2)) != key(_Left(2, 2))


def test_what_the_classes_of_the_protocol_leave_out_exists() -> None:
    names = [module.name for module in walk_packages(protocol.__path__, "protocol.")]
    kinds = {kind for name in names for kind in vars(import_module(name)).values() if isinstance(kind, type)}
    declaring = [kind for kind in kinds if "NOT_STATE" in vars(kind)]
    assert declaring
    for kind in declaring:
        source = "".join(map(getsource, kind.__mro__[:-1]))
        assert all(re.search(rf"self\.{name}\b|^    {name}:", source, re.MULTILINE) for name in not_state(kind)), kind


@pytest.fixture
def bench() -> BrokerBench:
    return BrokerBench().run(*topic_records(min_isr=2))


def test_a_copy_of_a_broker_is_another_broker_in_the_same_state(bench: BrokerBench) -> None:
    copy = copy_of(bench.node)
    assert copy is not bench.node
    assert key(copy) == key(bench.node)
    before = key(bench.node)
    bench.produce()
    assert key(copy) == before != key(bench.node)


def test_a_copy_does_what_the_original_does(bench: BrokerBench) -> None:
    copy = copy_of(bench.node)
    bench.produce().fetch(1, 1).fetch(2, 1)
    twin = BrokerBench()
    twin.node, twin.records, twin.storage = copy, bench.records, copy.storage
    twin.produce().fetch(1, 1).fetch(2, 1)
    assert key(copy) == key(bench.node)
    assert twin.high_watermark == bench.high_watermark == 1


def test_times_are_not_part_of_the_state(bench: BrokerBench) -> None:
    copy = copy_of(bench.node)
    twin = BrokerBench()
    twin.node, twin.now_ms = copy, 5_000
    bench.fetch(1, 0)
    twin.fetch(1, 0)
    assert key(copy) == key(bench.node)


def test_what_a_disk_holds_is_part_of_the_state() -> None:
    empty, full = SimStorage(), SimStorage()
    full.open_log("T/0").append(RecordBatch(record_count=1, payload=b"x"))
    empty.open_log("T/0")
    assert key(DeadBroker(0, empty)) != key(DeadBroker(0, full))
    assert key(DeadBroker(0, empty)) != key(DeadBroker(1, empty))


def test_equal_states_have_one_number(bench: BrokerBench) -> None:
    machines = Machines(ClusterSpec(3, 1, bench.node.config))
    number = machines.intern(bench.node)
    assert machines.intern(copy_of(bench.node)) == number
    assert machines.intern(copy_of(bench.produce().node)) != number


def test_a_state_is_stored_with_64_bits_for_queues() -> None:
    """Five brokers and a recovery manager have 57 queues."""
    state = (1, 2, 2**32 - 1, 1 << 56, 7)
    form = packing(len(state), held_place=3)
    assert form.unpack(form.pack(*state)) == state


def test_contents_of_channels_have_one_number_each() -> None:
    channels = Channels()
    one, two = channels.with_last(0, 5), channels.with_last(channels.with_last(0, 5), 6)
    assert channels[two] == (5, 6)
    assert channels.first_of(two) == (5, channels.with_last(0, 6))
    assert channels.first_of(one) == (5, 0)
    assert channels.with_last(channels.with_last(0, 5), 6) == two
