"""One read of a partition: from an offset on, in order, each offset once, to the high watermark that is found.

The consumer asks the leader for batch after batch and keeps its position between them. It says which leader epoch it
has read last; a leader whose log parts from that (an unclean election has cut what was read) says where, and the
consumer drops what is gone and reads on from there (KIP-320). A read that begins at EARLIEST begins at offset 0, or
where the log begins if that is later; out of range behind the end it begins again. A read that begins at an offset of
its own fails with OFFSET_OUT_OF_RANGE instead.

Reading twice does no harm, so what is not answered within `WATCH_MS` is asked again, of whoever leads by then. After
`delivery.timeout.ms`, and the time that it may wait for records, the read fails with the last error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.client.context import DEADLINE_PREFIX, WATCH_MS, WATCH_PREFIX, ClientContext
from protocol.client.metadata import Findings, LeaderFinder
from protocol.config import DELIVERY_TIMEOUT_MS, INT_MAX, RETRY_BACKOFF_MS
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET, NodeId, Offset, TimeMs
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
from protocol.messages.trusted import trusted

_REQUEST: Final = trusted(ConsumeRequest)
FETCH_BYTES = 1_048_576
"""Most that one request asks for."""


class Read:
    """A consume command under way; `over` is called once, when it has sent its outcome."""

    def __init__(
        self,
        context: ClientContext,
        finder: LeaderFinder,
        driver: NodeId,
        command: ConsumeCommand,
        over: Callable[[], None],
    ) -> None:
        self._context = context
        self._finder = finder
        self._driver = driver
        self._command = command
        self._over = over
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
        """Looks for the leader."""
        deadline_ms = now_ms + self._context.config.int_value(DELIVERY_TIMEOUT_MS) + self._command.max_wait_ms
        self._context.set_timer(f"{DEADLINE_PREFIX}{self._name}", deadline_ms, self._expire)
        self._look(now_ms)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _look(self, now_ms: TimeMs) -> None:
        self._context.forget(self._request_id)
        self._leader = NO_LEADER
        self._finder.search(now_ms, self._command.topic, self._name, self._found)
        self._watch(now_ms, WATCH_MS)

    def _watch(self, now_ms: TimeMs, after_ms: int) -> None:
        self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + after_ms, self._look)

    def _found(self, now_ms: TimeMs, findings: Findings) -> None:
        found = findings.partitions.get(self._command.partition)
        if found is not None and found[1].leader != NO_LEADER and self._leader == NO_LEADER:
            self._leader = found[1].leader
            self._ask(now_ms)
        elif found is None and findings.denied is not ErrorCode.NONE:
            self._end(findings.denied)
        elif found is None and findings.is_heard:
            self._last_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _ask(self, now_ms: TimeMs) -> None:
        """Asks the leader for what follows, or, with no position yet, where the log ends."""
        command, context = self._command, self._context
        context.forget(self._request_id)
        if self._position < 0 and command.offset == LATEST:
            self._request_id = context.expect(ListOffsetsResponse, self._located)
            request = ListOffsetsRequest(
                correlation_id=self._request_id,
                principal=context.principal,
                topic=command.topic,
                partition=command.partition,
                timestamp=LATEST,
            )
            context.out.send(self._leader, request)
            return
        self._request_id = context.expect(ConsumeResponse, self._answered)
        wait_ms = 0 if self._batches else command.max_wait_ms
        fetch = _REQUEST(
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
        self._watch(now_ms, WATCH_MS + wait_ms)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _located(self, now_ms: TimeMs, response: ListOffsetsResponse) -> None:
        if response.error is ErrorCode.NONE:
            self._position = response.offset
            self._ask(now_ms)
        else:
            self._refused(now_ms, response.error)

    def _answered(self, now_ms: TimeMs, response: ConsumeResponse) -> None:
        if response.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(now_ms, response)
        elif response.error is not ErrorCode.NONE:
            self._refused(now_ms, response.error)
        elif response.diverging_epoch is not None:
            self._cut(response.diverging_epoch.end_offset)
            self._ask(now_ms)
        else:
            self._take(now_ms, response)

    def _take(self, now_ms: TimeMs, response: ConsumeResponse) -> None:
        self._batches += response.batches
        self._size_bytes += sum([len(batch.payload) for batch in response.batches])
        self._high_watermark = max(self._high_watermark, response.high_watermark)
        if response.batches:
            self._position = self._batches[-1].next_offset
        if self._target is None:
            self._target = response.high_watermark
        if response.batches and self._position < self._target and self._size_bytes < self._command.max_bytes:
            self._ask(now_ms)
        else:
            self._end(ErrorCode.NONE, response.log_start_offset)

    def _cut(self, end_offset: Offset) -> None:
        """The leader's log parts from what was read at `end_offset`: what is not below it is gone."""
        kept = [batch for batch in self._batches if batch.next_offset <= end_offset]
        self._position = kept[-1].next_offset if kept else self._batches[0].base_offset
        self._batches, self._size_bytes = kept, sum(batch.size_bytes for batch in kept)

    def _refused(self, now_ms: TimeMs, error: ErrorCode) -> None:
        if error in RETRIABLE:
            self._look_later(now_ms, error)
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
            self._ask(now_ms)
        else:
            self._look_later(now_ms, response.error)

    def _look_later(self, now_ms: TimeMs, error: ErrorCode) -> None:
        self._last_error = error
        self._finder.leave(self._command.topic, self._name)
        self._watch(now_ms, self._context.config.int_value(RETRY_BACKOFF_MS))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _expire(self, now_ms: TimeMs) -> None:
        self._end(self._last_error)

    def _end(self, error: ErrorCode, log_start_offset: Offset = 0) -> None:
        self._context.forget(self._request_id)
        self._context.cancel_timer(f"{WATCH_PREFIX}{self._name}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{self._name}")
        self._finder.leave(self._command.topic, self._name)
        self._over()
        outcome = ConsumeOutcome(
            command_id=self._command.command_id,
            error=error,
            batches=tuple(self._batches) if error is ErrorCode.NONE else (),
            high_watermark=self._high_watermark,
            log_start_offset=log_start_offset,
            next_offset=self._position if error is ErrorCode.NONE else NO_OFFSET,
        )
        self._context.out.send(self._driver, outcome)
