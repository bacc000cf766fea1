"""Fetch by consumers.

**Waiting.** A fetch first reads all its partitions, a few at a time. If they have less than `min_bytes`, and none has
news (an error, a diverging epoch), it asks for what follows and waits at each leader until the high watermark moves
there; so again, until there is enough, or `max_wait` is over. Departure from Kafka: where the request's limits allow no
more records of any partition, it does not wait for `max_wait` to end, whatever `min_bytes`.

**Sessions** (KIP-227). A consumer may name all its partitions once; the broker remembers them with what it answered
last, and later requests and responses have only what has changed. Sessions are numbered per broker, at most
`MAX_SESSIONS` of them, of which the least recently used is dropped; a client whose session is unknown starts a new one.

Requests of followers (a replica id of 0 or more) are refused: replicas fetch by the project's own messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET, Offset
from protocol.kafka.batches import to_kafka
from protocol.kafka.calls import BROKER, MAX_WAIT_MS, Answers, Call, Calls, Handler
from protocol.kafka.view import NO_UUID, Client, View, epoch_error, leader_fields
from protocol.kafka.wire import KafkaRequest, Values, ms_of
from protocol.messages.base import Response, changed
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeRequest, ConsumeResponse

AT_A_TIME = 16
"""How many partitions are read together."""
MAX_SESSIONS = 1_000
"""`max.incremental.fetch.session.cache.slots` of Kafka."""
NO_SESSION = 0
FULL = 0
CLOSE = -1
"""Session epochs that begin a session and end one."""


@dataclass(slots=True)
class Wanted:
    """A partition of a fetch. `topic` is the name, or None with `topic_id` where the request names topics by id."""

    topic: str | None
    topic_id: UUID
    partition: int
    current_leader_epoch: int
    fetch_offset: Offset
    last_fetched_epoch: int
    max_bytes: int
    answered: tuple[Offset, Offset] | None = None
    """(high watermark, log start offset) of the last response in the session."""

    @property
    def key(self) -> tuple[str | None, UUID, int]:
        return self.topic, self.topic_id, self.partition


@dataclass(slots=True)
class FetchSession:
    epoch: int
    partitions: dict[tuple[str | None, UUID, int], Wanted] = field(default_factory=dict)


@dataclass(eq=False)
class KafkaFetchSessions:
    """The fetch sessions of a broker's consumers."""

    sessions: OrderedDict[int, FetchSession] = field(default_factory=OrderedDict)
    last_id: int = 0

    def begin(self, wanted: list[Wanted]) -> int:
        self.last_id = self.last_id % (2**31 - 1) + 1
        if len(self.sessions) >= MAX_SESSIONS:
            self.sessions.popitem(last=False)
        self.sessions[self.last_id] = FetchSession(1, {item.key: item for item in wanted})
        return self.last_id

    def next(self, session_id: int, epoch: int, body: Any) -> FetchSession | ErrorCode:
        """The session after the changes of an incremental request, or the error that makes the client begin another."""
        session = self.sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = session.epoch % (2**31 - 1) + 1
        self.sessions.move_to_end(session_id)
        for item in wanted_of(body):
            known = session.partitions.pop(item.key, None)
            item.answered = None if known is None else known.answered
            session.partitions[item.key] = item
        for topic in body.forgotten_topics_data:
            for partition in topic.partitions:
                key = (getattr(topic, "topic", None), getattr(topic, "topic_id", NO_UUID), partition)
                session.partitions.pop(key, None)
        return session


def wanted_of(body: Any) -> Iterator[Wanted]:
    """The partitions that a request names."""
    for topic in body.topics:
        for item in topic.partitions:
            yield Wanted(
                getattr(topic, "topic", None),
                getattr(topic, "topic_id", NO_UUID),
                item.partition,
                getattr(item, "current_leader_epoch", -1),
                item.fetch_offset,
                getattr(item, "last_fetched_epoch", -1),
                item.partition_max_bytes,
            )


def fetch(view: View, sessions: KafkaFetchSessions, client: Client, request: KafkaRequest) -> Handler:
    """Reads committed records of all partitions of the request, or of its session."""
    body = request.body
    if _replica_id(body) >= 0:
        return _failed(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    session_id, epoch = getattr(body, "session_id", NO_SESSION), getattr(body, "session_epoch", CLOSE)
    session: FetchSession | None = None
    if epoch in (FULL, CLOSE):
        wanted = list({item.key: item for item in wanted_of(body)}.values())
        sessions.sessions.pop(session_id, None)
        session_id = sessions.begin(wanted) if epoch == FULL and wanted else NO_SESSION
    else:
        found = sessions.next(session_id, epoch, body)
        if isinstance(found, ErrorCode):
            return _failed(found)
        session, wanted = found, list(found.partitions.values())
    deadline_ms = view.now_ms + min(ms_of(body.max_wait), MAX_WAIT_MS)
    answers = yield from _read(view, client, wanted, body, deadline_ms)
    if session is not None:  # those that had their turn come last in the next response
        for item in [item for item, answer in zip(wanted, answers, strict=True) if _size(answer)]:
            session.partitions[item.key] = session.partitions.pop(item.key, item)
    return {
        "error_code": ErrorCode.NONE,
        "session_id": session_id,
        **_results(view, wanted, answers, getattr(body, "max_bytes", 2**31 - 1), session is not None),
    }


def _replica_id(body: Any) -> int:
    state = getattr(body, "replica_state", None)
    return int(getattr(body, "replica_id", -1) if state is None else state.replica_id)


def _failed(error: ErrorCode) -> Values:
    return {"error_code": error, "session_id": NO_SESSION, "responses": ()}


def _read(view: View, client: Client, wanted: list[Wanted], body: Any, deadline_ms: int) -> Any:
    """The responses of the leaders, one for each partition; an ErrorCode where no leader is asked. Partitions are read
    a few at a time until there are `max_bytes`; of the others only the marks are answered.
    """
    min_bytes, left = body.min_bytes, getattr(body, "max_bytes", 2**31 - 1)
    answers: list[Response | ErrorCode | None] = [_error(view, item) for item in wanted]
    asked = [place for place, error in enumerate(answers) if error is None]
    for begin in range(0, len(asked), AT_A_TIME):
        places = asked[begin : begin + AT_A_TIME]
        if left <= 0:
            first: Answers | list[Response | ErrorCode] = [_marks(view, wanted[place]) for place in places]
        else:
            calls = [_call(view, client, wanted[place], 0, left) for place in places]
            first = yield Calls(calls, max(deadline_ms, view.now_ms + 1))
        for place, response in zip(places, first, strict=True):
            answers[place] = _beyond_end(view, wanted[place], response)
            left -= _size(response)
    while view.now_ms < deadline_ms and not _is_enough(answers, min_bytes):
        places = [place for place in asked if _size(answers[place]) < wanted[place].max_bytes]
        if not places or left <= 0:
            break
        wait_ms = deadline_ms - view.now_ms
        calls = [_call(view, client, _rest(wanted[place], answers[place]), wait_ms, left) for place in places]
        more = yield Calls(calls, deadline_ms, _has_some)
        for place, response in zip(places, more, strict=True):
            answers[place] = _joined(answers[place], response)
        left -= sum(_size(response) for response in more)
        if not _has_some(more) or any(_has_news(response) for response in more):
            break
    return answers


def _beyond_end(view: View, item: Wanted, answer: Response | ErrorCode | None) -> Response | ErrorCode | None:
    """The answer; but above the log end, where the client names the epoch of its last record, the end of the epoch up
    to which the log may be the same (KIP-320). The project's own clients get OFFSET_OUT_OF_RANGE there.
    """
    if not isinstance(answer, ConsumeResponse) or answer.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
        return answer
    topic = view.topic(item.topic, item.topic_id)
    replica = None if topic is None else view.context.replica_named(topic.name, item.partition)
    if replica is None or item.last_fetched_epoch < 0 or item.fetch_offset <= replica.log.end_offset:
        return answer
    diverging = replica.log.divergence(item.fetch_offset, item.last_fetched_epoch)
    return changed(answer, error=ErrorCode.NONE, diverging_epoch=diverging)


def _has_some(more: Answers) -> bool:
    """Whether one of the responses has records or news."""
    return any(_has_news(response) or _size(response) for response in more)


def _rest(item: Wanted, answer: Response | ErrorCode | None) -> Wanted:
    """What is wanted of a partition behind what has been read of it."""
    if not isinstance(answer, ConsumeResponse) or not answer.batches:
        return item
    last, max_bytes = answer.batches[-1], item.max_bytes - _size(answer)
    return replace(item, fetch_offset=last.next_offset, last_fetched_epoch=last.leader_epoch, max_bytes=max_bytes)


def _joined(before: Response | ErrorCode | None, more: Response | None) -> Response | ErrorCode | None:
    """What has been read of a partition: both responses; the first alone where it has records and the other has news,
    which the client gets by its next fetch.
    """
    if more is None or not _size(before):
        return before if more is None else more
    if not isinstance(before, ConsumeResponse) or not isinstance(more, ConsumeResponse) or _has_news(more):
        return before
    return changed(more, batches=before.batches + more.batches)


def _is_enough(answers: list[Response | ErrorCode | None], min_bytes: int) -> bool:
    return any(_has_news(item) for item in answers) or sum(_size(item) for item in answers) >= min_bytes


def _has_news(answer: Response | ErrorCode | None) -> bool:
    """Whether an answer must not wait: an error, or a diverging epoch."""
    if isinstance(answer, ConsumeResponse):
        return answer.error is not ErrorCode.NONE or answer.diverging_epoch is not None
    return answer is not None


def _size(answer: Response | ErrorCode | None) -> int:
    return sum(len(batch.payload) for batch in answer.batches) if isinstance(answer, ConsumeResponse) else 0


def _error(view: View, item: Wanted) -> ErrorCode | None:
    """Why no replica is asked for a partition; None where one is."""
    topic = view.topic(item.topic, item.topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if item.topic else ErrorCode.UNKNOWN_TOPIC_ID
    error = epoch_error(view.image, topic, item.partition, item.current_leader_epoch)
    return None if error is ErrorCode.NONE else error


def _marks(view: View, item: Wanted) -> Response | ErrorCode:
    """High watermark and log start of a partition that is not read."""
    topic = view.topic(item.topic, item.topic_id)
    replica = None if topic is None else view.context.replica_named(topic.name, item.partition)
    if replica is None or replica.leadership is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = replica.log
    return ConsumeResponse(correlation_id=0, high_watermark=log.high_watermark, log_start_offset=log.start_offset)


def _call(view: View, client: Client, item: Wanted, wait_ms: int, left: int) -> Call:
    topic = view.topic(item.topic, item.topic_id)
    assert topic is not None
    request = ConsumeRequest.unchecked(
        correlation_id=0,
        principal=client.principal,
        topic=topic.name,
        partition=item.partition,
        fetch_offset=item.fetch_offset,
        max_bytes=min(item.max_bytes, left),
        max_wait_ms=wait_ms,
        last_fetched_epoch=item.last_fetched_epoch,
    )
    return Call(BROKER, request)


def _results(
    view: View, wanted: list[Wanted], answers: list[Response | ErrorCode | None], max_bytes: int, incremental: bool
) -> Values:
    """The partitions of a response by topic; of an incremental one those with records, an error or a change."""
    topics: dict[tuple[str | None, UUID], list[Values]] = {}
    leaders: list[int] = []
    left = max_bytes
    for item, answer in zip(wanted, answers, strict=True):
        result = _result(view, item, answer, left)
        left = left - len(result["records"] or b"")
        if result["error_code"] in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            leaders.append(result["current_leader"]["leader_id"])
        marks = (result["high_watermark"], result["log_start_offset"])
        is_news = result["records"] or result["error_code"] is not ErrorCode.NONE or "diverging_epoch" in result
        if not incremental or is_news or marks != item.answered:
            topics.setdefault((item.topic, item.topic_id), []).append(result)
            item.answered = marks
    responses = [
        {"topic": name or "", "topic_id": topic_id, "partitions": partitions}
        for (name, topic_id), partitions in topics.items()
    ]
    return {"responses": responses, "node_endpoints": view.node_endpoints(leaders)}


def _result(view: View, item: Wanted, answer: Response | ErrorCode | None, left: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "partition_index": item.partition,
        "error_code": ErrorCode.NONE,
        "high_watermark": NO_OFFSET,
        "last_stable_offset": NO_OFFSET,
        "log_start_offset": NO_OFFSET,
        "aborted_transactions": None,
        "records": b"",
    }
    if isinstance(answer, ErrorCode):
        result["error_code"] = answer
    elif isinstance(answer, ConsumeResponse):
        result |= {
            "error_code": answer.error,
            "high_watermark": answer.high_watermark,
            "last_stable_offset": answer.high_watermark,
            "log_start_offset": answer.log_start_offset,
            "records": _records(view, answer.batches, left),
        }
        if answer.diverging_epoch is not None:
            diverging = answer.diverging_epoch
            result["diverging_epoch"] = {"epoch": diverging.leader_epoch, "end_offset": diverging.end_offset}
    else:
        result["error_code"] = ErrorCode.REQUEST_TIMED_OUT
    if result["error_code"] in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        topic = view.topic(item.topic, item.topic_id)
        result["current_leader"] = leader_fields(None if topic is None else topic.partitions.get(item.partition))
    return result


def _records(view: View, batches: tuple[RecordBatch, ...], left: int) -> bytes:
    """The batches as Kafka's clients read them, as far as they fit into `left` bytes; nothing where that is used up."""
    if left <= 0:
        return b""
    return b"".join(to_kafka(batch, view.checksum) for batch in batches)
