"""One read of a partition by a consumer: in order, each offset once, up to the high watermark of the first response.

The consumer requests batch after batch from the leader and sends the leader epoch of its last record with each request.
A leader whose log has diverged from what was read (records were lost in an unclean election) answers with the diverging
epoch; the consumer drops its batches from there and reads on (KIP-320). A read from EARLIEST begins at offset 0, or at
the log start if that is higher; if its position gets out of range above the log end it begins again. A read from a
given offset fails with OFFSET_OUT_OF_RANGE instead.

A request without a response for `WATCH_MS` is repeated, to the leader of that time. LEADER_NOT_AVAILABLE is the error
of a partition without a leader. The read fails at once with one of its `final_errors`, and otherwise with its last
retriable error after `delivery.timeout.ms` plus its `max_wait_ms`.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.client.context import DEADLINE_PREFIX, WATCH_MS, WATCH_PREFIX, ClientContext, LeaderFinder, TopicLeaders
from protocol.config import DELIVERY_TIMEOUT_MS, INT_MAX, RETRY_BACKOFF_MS
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET, NodeId, Offset, TimeMs
from protocol.log.checksum import is_intact
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ConsumeCommand, ConsumeOutcome
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    ConsumeRequest,
    ConsumeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

FETCH_BYTES = 1_048_576
"""Maximum of one request."""


class Read:
    """A consume command in progress; calls `on_done` once, before it sends its outcome to `driver`."""

    def __init__(
        self,
        context: ClientContext,
        finder: LeaderFinder,
        driver: NodeId,
        command: ConsumeCommand,
        on_done: Callable[[], object],
    ) -> None:
        self._context = context
        self._finder = finder
        self._driver = driver
        self._command = command
        self._on_done = on_done
        self._name = f"{command.command_id}"
        self._request_id = -1
        self._leader = NO_LEADER
        self._position: Offset = {EARLIEST: 0, LATEST: NO_OFFSET}.get(command.offset, command.offset)
        self._batches: list[RecordBatch] = []
        self._size_bytes = 0
        self._target: Offset | None = None
        self._high_watermark: Offset = 0
        self._last_error = ErrorCode.REQUEST_TIMED_OUT

    def begin(self, now_ms: TimeMs) -> None:
        deadline_ms = now_ms + self._context.config.int_value(DELIVERY_TIMEOUT_MS) + self._command.max_wait_ms
        self._context.set_timer(f"{DEADLINE_PREFIX}{self._name}", deadline_ms, lambda _: self._end(self._last_error))
        self._search_leader(now_ms)

    def _search_leader(self, now_ms: TimeMs) -> None:
        self._context.forget(self._request_id)
        self._leader = NO_LEADER
        self._finder.search(now_ms, self._command.topic, self._name, self._receive_leader)
        self._set_watch(now_ms, WATCH_MS)

    def _set_watch(self, now_ms: TimeMs, after_ms: int) -> None:
        self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + after_ms, self._search_leader)

    def _receive_leader(self, now_ms: TimeMs, leaders: TopicLeaders) -> None:
        found = leaders.partitions.get(self._command.partition)
        if found is None:
            if leaders.error is not ErrorCode.NONE:
                self._end(leaders.error)
            elif leaders.is_answered:
                self._note(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif self._leader == NO_LEADER:
            self._leader = found[1].leader
            if self._leader == NO_LEADER:
                self._note(ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                self._request_next(now_ms)

    def _note(self, error: ErrorCode) -> None:
        """A retriable error before there is a leader to ask; the watch timer repeats the search."""
        self._last_error = error
        if error in self._command.final_errors:
            self._end(error)

    def _request_next(self, now_ms: TimeMs) -> None:
        """Requests the next batches from the leader; or, without a position yet, the offset of the log's end."""
        command, context = self._command, self._context
        context.forget(self._request_id)
        if self._position < 0 and command.offset == LATEST:
            self._request_id = context.expect(ListOffsetsResponse, self._receive_offset)
            request = ListOffsetsRequest(
                correlation_id=self._request_id,
                principal=context.principal,
                topic=command.topic,
                partition=command.partition,
                timestamp=LATEST,
            )
            context.out.send(self._leader, request)
            return
        self._request_id = context.expect(ConsumeResponse, self._receive)
        wait_ms = 0 if self._batches else command.max_wait_ms
        fetch = ConsumeRequest.unchecked(
            correlation_id=self._request_id,
            principal=context.principal,
            topic=command.topic,
            partition=command.partition,
            fetch_offset=self._position,
            max_bytes=max(0, min(FETCH_BYTES, command.max_bytes - self._size_bytes, INT_MAX)),
            max_wait_ms=wait_ms,
            last_fetched_epoch=self._batches[-1].leader_epoch if self._batches else NO_EPOCH,
        )
        context.out.send(self._leader, fetch)
        self._set_watch(now_ms, WATCH_MS + wait_ms)

    def _receive_offset(self, now_ms: TimeMs, response: ListOffsetsResponse) -> None:
        if response.error is ErrorCode.NONE:
            self._position = response.offset
            self._request_next(now_ms)
        else:
            self._handle_error(now_ms, response.error)

    def _receive(self, now_ms: TimeMs, response: ConsumeResponse) -> None:
        if response.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(now_ms, response)
        elif response.error is not ErrorCode.NONE:
            self._handle_error(now_ms, response.error)
        elif response.diverging_epoch is not None:
            self._drop_from(response.diverging_epoch.end_offset)
            self._request_next(now_ms)
        else:
            self._add_batches(now_ms, response)

    def _add_batches(self, now_ms: TimeMs, response: ConsumeResponse) -> None:
        """Takes the batches of a response; reads them again if one does not match its checksum."""
        if not all(is_intact(batch, self._context.checksum) for batch in response.batches):
            self._search_later(now_ms, ErrorCode.CORRUPT_MESSAGE)
            return
        self._batches += response.batches
        self._size_bytes += sum([len(batch.payload) for batch in response.batches])
        self._high_watermark = max(self._high_watermark, response.high_watermark)
        if response.batches:
            self._position = self._batches[-1].next_offset
        if self._target is None:
            self._target = response.high_watermark
        if response.batches and self._position < self._target and self._size_bytes < self._command.max_bytes:
            self._request_next(now_ms)
        else:
            self._end(ErrorCode.NONE, response.log_start_offset)

    def _drop_from(self, end_offset: Offset) -> None:
        """Drops the batches that reach beyond `end_offset`, where the leader's log differs from what was read."""
        kept = [batch for batch in self._batches if batch.next_offset <= end_offset]
        self._position = kept[-1].next_offset if kept else self._batches[0].base_offset
        self._batches, self._size_bytes = kept, sum(batch.size_bytes for batch in kept)

    def _handle_error(self, now_ms: TimeMs, error: ErrorCode) -> None:
        if error in RETRIABLE and error not in self._command.final_errors:
            self._search_later(now_ms, error)
        else:
            self._end(error)

    def _out_of_range(self, now_ms: TimeMs, response: ConsumeResponse) -> None:
        if self._command.offset != EARLIEST:
            self._high_watermark = response.high_watermark
            self._end(response.error, response.log_start_offset)
            return
        self._batches.clear()
        self._size_bytes, self._target = 0, None
        begins_later = self._position < response.log_start_offset
        self._position = max(0, response.log_start_offset)
        if begins_later:
            self._request_next(now_ms)
        else:
            self._search_later(now_ms, response.error)

    def _search_later(self, now_ms: TimeMs, error: ErrorCode) -> None:
        self._last_error = error
        self._finder.cancel(self._command.topic, self._name)
        self._set_watch(now_ms, self._context.config.int_value(RETRY_BACKOFF_MS))

    def _end(self, error: ErrorCode, log_start_offset: Offset = 0) -> None:
        self._context.forget(self._request_id)
        self._context.cancel_timer(f"{WATCH_PREFIX}{self._name}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{self._name}")
        self._finder.cancel(self._command.topic, self._name)
        self._on_done()
        outcome = ConsumeOutcome(
            command_id=self._command.command_id,
            error=error,
            batches=tuple(self._batches) if error is ErrorCode.NONE else (),
            high_watermark=self._high_watermark,
            log_start_offset=log_start_offset,
            next_offset=self._position if error is ErrorCode.NONE else NO_OFFSET,
        )
        self._context.out.send(self._driver, outcome)
