"""Frames at random end their own connection at most (`kafka_fuzz.py`; docs/client-findings.md has long runs)."""

from __future__ import annotations

from random import Random

import pytest

from protocol.errors import MalformedMessageError
from protocol.kafka.wire import decode_request, request_head
from tests.unit.protocol.kafka.kafka_bench import KafkaBench
from tests.unit.protocol.kafka.kafka_fuzz import fuzz, request


@pytest.mark.parametrize("scene", ["plain", "groups", "sasl"])
def test_damaged_frames_end_their_own_connection_at_most(scene: str) -> None:
    outcomes = fuzz(1_000, 7, scene)
    assert sum(outcomes.values()) == 1_000
    assert min(outcomes["closed"], outcomes["answered"]) > 100


def test_an_array_with_more_items_than_bytes_is_not_read() -> None:
    """An array of 2 ** 31 - 1 topics in a request of Metadata version 1: kio would make room for all of them."""
    body = (3).to_bytes(2, "big") + (1).to_bytes(2, "big") + bytes(4) + b"\xff\xff" + b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedMessageError, match="found an array of 2147483647 items in 0 bytes"):
        decode_request(request_head(body), body)


def test_an_array_that_may_not_be_null_is_not_null() -> None:
    """A null array of partitions in OffsetForLeaderEpoch version 2, which has no null arrays."""
    body = (
        (23).to_bytes(2, "big") + (2).to_bytes(2, "big") + bytes(4) + b"\xff\xff" + b"\0\0\0\1" + b"\0\1t" + b"\xff" * 4
    )
    with pytest.raises(MalformedMessageError, match="partitions is null"):
        decode_request(request_head(body), body)


@pytest.mark.parametrize("seed", range(3))
def test_lengths_fit_exactly_where_a_request_is_whole(seed: int) -> None:
    """Whole requests of every API and version are read; without their last byte they are not."""
    random = Random(seed)
    for api in KafkaBench().both.listener.apis:
        for version in range(api.low, api.high + 1):
            body = request(random, [(api.key, version, version)])
            decode_request(request_head(body), body)
            with pytest.raises(MalformedMessageError):
                decode_request(request_head(body), body[: len(body) - 1])
