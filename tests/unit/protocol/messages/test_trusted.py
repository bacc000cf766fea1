"""Messages built without validation equal those that pydantic builds."""

from __future__ import annotations

import pickle
import sys

import pytest
from pydantic import Field, ValidationError, field_validator

from protocol.errors import ErrorCode
from protocol.messages.base import Frozen, Int32
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode, encode
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchResponse, ProduceResponse
from protocol.messages.trusted import changed, trusted

pytestmark = pytest.mark.unit

BATCH = RecordBatch(record_count=1, payload=b"x")
RESULT = {"topic_id": "t", "partition_id": 1, "fetch_offset": 7, "leader_epoch": 2}
CASES = [
    (ProduceResponse, {"correlation_id": 4, "error": ErrorCode.REQUEST_TIMED_OUT}),
    (FetchPartition, {"topic_id": "t", "partition_id": 0, "current_leader_epoch": 1, "fetch_offset": 9}),
    (FetchPartitionResult, RESULT | {"batches": (BATCH,)}),
    (FetchResponse, {"partitions": (FetchPartitionResult(**RESULT),), "number": 3}),
]


@pytest.mark.parametrize(("model", "fields"), CASES)
def test_a_trusted_message_equals_the_validated_one(model: type[Frozen], fields: dict) -> None:
    built, checked = trusted(model)(**fields), model(**fields)
    assert type(built) is model
    assert built == checked
    assert hash(built) == hash(checked)
    assert repr(built) == repr(checked)
    assert built.model_dump() == checked.model_dump()
    assert decode(encode(built)) == checked
    assert pickle.loads(pickle.dumps(built)) == checked
    assert built.model_copy(update={}) == checked


@pytest.mark.parametrize(("model", "fields"), CASES)
def test_a_trusted_message_is_frozen_and_complete(model: type[Frozen], fields: dict) -> None:
    with pytest.raises(ValidationError):
        trusted(model)(**fields).error = ErrorCode.NONE
    with pytest.raises(TypeError):
        trusted(model)(**fields, unknown=1)
    with pytest.raises(TypeError):
        trusted(model)()


class Filled(Frozen):
    parts: tuple[int, ...] = Field(default_factory=tuple)


class Judged(Frozen):
    size: int

    @field_validator("size")
    @classmethod
    def is_even(cls, size: int) -> int:
        return size - size % 2


@pytest.mark.parametrize("model", [Filled, Judged])
def test_a_model_with_validators_or_factories_is_rejected(model: type[Frozen]) -> None:
    with pytest.raises(TypeError, match=model.__name__):
        trusted(model)


def test_changed_replaces_only_the_given_fields() -> None:
    before = FetchPartition(topic_id="t", partition_id=0, current_leader_epoch=1, fetch_offset=9)
    after = changed(before, high_watermark=5, fetch_offset=10)
    assert after == before.model_copy(update={"high_watermark": 5, "fetch_offset": 10})
    assert (before.high_watermark, before.fetch_offset) == (0, 9)
    assert list(after.__dict__) == list(before.__dict__)


def test_a_validator_is_built_without_frames_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Frozen):
        count: Int32

    with monkeypatch.context() as patch:
        patch.delattr(sys, "_getframe")
        found = Counted(count=3)
    assert found.count == 3
    with pytest.raises(ValidationError):
        Counted(count=2**31)
