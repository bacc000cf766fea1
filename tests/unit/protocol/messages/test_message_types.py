"""Message types are pydantic's in all that one reads of them; messages built without validation equal the others."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass

from protocol.errors import ErrorCode
from protocol.messages.base import Message, changed, field_values, from_json, json_values
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode, encode
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchResponse, ProduceResponse
from protocol.messages.records import PartitionChangeRecord

pytestmark = pytest.mark.unit

BATCH = RecordBatch(record_count=1, payload=b"x")
RESULT: dict[str, Any] = {"topic_id": "t", "partition_id": 1, "fetch_offset": 7, "leader_epoch": 2}
FETCH: dict[str, Any] = {"topic_id": "t", "partition_id": 0, "current_leader_epoch": 1, "fetch_offset": 9}
CASES: list[tuple[type[Message], dict[str, Any]]] = [
    (ProduceResponse, {"correlation_id": 4, "error": ErrorCode.REQUEST_TIMED_OUT}),
    (FetchPartition, FETCH),
    (FetchPartitionResult, RESULT | {"batches": (BATCH,)}),
    (FetchResponse, {"partitions": (FetchPartitionResult(**RESULT),), "number": 3}),
]


@pytest.mark.parametrize("model", Message.REGISTRY.values(), ids=Message.REGISTRY)
def test_every_type_is_a_pydantic_dataclass_with_a_schema_of_its_fields(model: type[Message]) -> None:
    assert is_pydantic_dataclass(model)
    schema = TypeAdapter(model).json_schema()
    names = [field.name for field in fields(model)]
    assert schema["title"] == model.__name__
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == names
    assert schema["description"].split() == (model.__doc__ or "").split()
    assert "self" not in names, "it could not be given by keyword"


def test_the_schema_states_the_limits_of_integers() -> None:
    properties = TypeAdapter(FetchPartition).json_schema()["properties"]
    assert properties["partition_id"]["minimum"] == -(2**31)
    assert properties["fetch_offset"]["exclusiveMaximum"] == 2**63
    assert properties["last_fetched_epoch"]["default"] == -1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"partition_id": 2**31}, "partition_id: Input should be less than 2147483648"),
        ({"partition_id": "0"}, "partition_id: Input should be a valid integer"),
        ({"partition_id": True}, "partition_id: Input should be a valid integer"),
        ({"fetch_offset": 1.0}, "fetch_offset: Input should be a valid integer"),
        ({"topic_id": b"t"}, "topic_id: Input should be a valid string"),
        ({"unknown": 1}, "unknown: Unexpected keyword argument"),
    ],
)
def test_validation_is_strict_and_its_errors_fit_a_line(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as raised:
        FetchPartition(**FETCH | change)
    [error] = raised.value.errors()
    assert f"{error['loc'][0]}: {error['msg']}" == complaint


def test_a_missing_field_and_values_by_position_are_refused() -> None:
    with pytest.raises(ValidationError, match="fetch_offset"):
        FetchPartition(topic_id="t", partition_id=0, current_leader_epoch=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="positional"):
        FetchPartition("t", 0, 1, 9)  # type: ignore[misc]


@pytest.mark.parametrize(("model", "given"), CASES)
def test_an_unchecked_message_equals_the_validated_one(model: type[Message], given: dict[str, Any]) -> None:
    built, checked = model.unchecked(**given), model(**given)
    assert type(built) is model
    assert built == checked
    assert hash(built) == hash(checked)
    assert repr(built) == repr(checked)
    assert field_values(built) == field_values(checked)
    assert json_values(built) == json_values(checked)
    assert decode(encode(built)) == checked
    assert pickle.loads(pickle.dumps(built)) == checked
    assert replace(built) == checked


@pytest.mark.parametrize(("model", "given"), CASES)
def test_an_unchecked_message_is_frozen_and_complete(model: type[Message], given: dict[str, Any]) -> None:
    with pytest.raises(FrozenInstanceError):
        model.unchecked(**given).error = ErrorCode.NONE  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=f"{model.__name__} .*unknown"):
        model.unchecked(**given, unknown=1)
    with pytest.raises(TypeError, match=model.__name__):
        model.unchecked()


def test_copies_replace_only_the_given_fields() -> None:
    before = FetchPartition(**FETCH)
    after = changed(before, high_watermark=5, fetch_offset=10)
    assert after == replace(before, high_watermark=5, fetch_offset=10)
    assert (before.high_watermark, before.fetch_offset) == (0, 9)
    with pytest.raises(ValidationError):
        replace(before, partition_id=2**31)


@pytest.mark.parametrize("version", [None, (0, 2)])
def test_json_has_all_fields_and_is_validated(version: tuple[int, ...] | None) -> None:
    record = PartitionChangeRecord(topic_id="t", partition_id=0, isr=version)
    text = json.dumps(json_values(record))
    assert json.loads(text) == field_values(record) | {"isr": version and list(version)}
    assert from_json(PartitionChangeRecord, text) == record
    with pytest.raises(ValidationError, match="partition_id"):
        from_json(PartitionChangeRecord, text.replace('"partition_id": 0', '"partition_id": "0"'))
