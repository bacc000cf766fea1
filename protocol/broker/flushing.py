"""When a broker writes its logs through to the disk, when it deletes their oldest segments, and what it remembers of
high watermarks.

Kafka leaves durability to replication: by default nothing is flushed by policy. `flush.messages` flushes after so
many records, `flush.ms` so long after the first unflushed record. High watermarks are written to a checkpoint file at
most every `replica.high.watermark.checkpoint.interval.ms`, so that a restarted broker starts from a recent one, which
may lag (A29).

Retention (`protocol.log.retention`) is looked after every `log.retention.check.interval.ms`, as long as any log has a
closed segment; where none has, nothing waits for it.

Where the disk fails, StorageError ends the broker. A checkpoint that cannot be read says nothing: high watermarks then
lag as far as they can, and an operator is told.
"""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.config import (
    FLUSH_MESSAGES,
    FLUSH_MS,
    HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS,
    LOG_RETENTION_CHECK_INTERVAL_MS,
    NEVER,
    RETENTION_BYTES,
    RETENTION_MS,
)
from protocol.errors import CorruptLogError
from protocol.ids import Offset, TimeMs, TopicIdPartition
from protocol.log.retention import retained_from

CHECKPOINT_FILE = "replication-offset-checkpoint.json"
CHECKPOINT_TIMER = "high-watermark-checkpoint"
FLUSH_PREFIX = "flush/"
RETENTION_TIMER = "log-retention"
_OFFSETS = TypeAdapter(dict[str, Annotated[int, Field(ge=0, strict=True)]])


class Flusher:
    """Applies the flush policy and retention, and keeps the high watermark checkpoint of one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._flush_due: set[TopicIdPartition] = set()
        self._checkpoint_due = False
        self._forgotten = False
        self._retention_armed = False
        self._checkpoint = self._read_checkpoint()

    def _read_checkpoint(self) -> dict[str, Offset]:
        data = self._context.storage.read_file(CHECKPOINT_FILE)
        try:
            return {} if data is None else _OFFSETS.validate_json(data)
        except ValidationError as error:
            reason = f"{CHECKPOINT_FILE}: no high watermarks: {error.errors()[0]['msg']}"
            self._context.out.trace("storage_error", None, reason=reason, halted=False)
            return {}

    def checkpointed_high_watermark(self, key: TopicIdPartition) -> Offset:
        """What the checkpoint file says, 0 where it says nothing."""
        return self._checkpoint.get(log_name(key), 0)

    def forget(self, key: TopicIdPartition) -> None:
        """What the checkpoint says of this partition is about a log that is gone; see `write_forgotten`."""
        self._forgotten = self._checkpoint.pop(log_name(key), None) is not None or self._forgotten

    def write_forgotten(self) -> None:
        """Makes it durable that something was forgotten; call before the new log gets records."""
        if self._forgotten:
            self.write_checkpoint()

    def appended(self, replica: Replica, now_ms: TimeMs) -> None:
        """Call after every append: flushes now, or sets a timer, as the topic's configs say."""
        self.watch_retention(replica, now_ms)
        image, storage = self._context.image, replica.log.storage
        if storage.end_offset - storage.flushed_offset >= image.int_config(replica.key.topic_id, FLUSH_MESSAGES):
            storage.flush()
            return
        flush_ms = image.int_config(replica.key.topic_id, FLUSH_MS)
        if flush_ms != NEVER and replica.key not in self._flush_due:
            self._flush_due.add(replica.key)
            self._context.out.set_timer(FLUSH_PREFIX + log_name(replica.key), now_ms + flush_ms)

    def fire_flush(self, name: str) -> None:
        """A `flush.ms` timer is due."""
        topic_id, partition = name.removeprefix(FLUSH_PREFIX).rsplit("/", 1)
        key = TopicIdPartition(topic_id, int(partition))
        self._flush_due.discard(key)
        replica = self._context.replicas.get(key)
        if replica is not None:
            replica.log.storage.flush()

    def watch_retention(self, replica: Replica, now_ms: TimeMs) -> None:
        """Call where a log may have got a closed segment: sees to it that it is deleted in time."""
        if replica.log.has_closed_segments and not self._retention_armed:
            self._retention_armed = True
            interval_ms = self._context.config.int_value(LOG_RETENTION_CHECK_INTERVAL_MS)
            self._context.out.set_timer(RETENTION_TIMER, now_ms + interval_ms)

    def fire_retention(self, now_ms: TimeMs) -> None:
        """Deletes the segments that are too old or too many, and comes again while there are any."""
        self._retention_armed = False
        for replica in self._context.replicas.values():
            if replica.log.has_closed_segments:
                self._retain(replica, now_ms)
                self.watch_retention(replica, now_ms)

    def _retain(self, replica: Replica, now_ms: TimeMs) -> None:
        image, log, topic_id = self._context.image, replica.log, replica.key.topic_id
        retention_ms, retention_bytes = (image.int_config(topic_id, name) for name in (RETENTION_MS, RETENTION_BYTES))
        try:
            segments = log.storage.segments()
            offset = retained_from(segments, log.high_watermark, now_ms, retention_ms, retention_bytes)
            if log.delete_segments_before(offset):
                self._context.out.trace("segments_deleted", replica.name, log_start=log.start_offset)
        except CorruptLogError as error:
            self._context.damage_found(replica, error)

    def high_watermark_moved(self, now_ms: TimeMs) -> None:
        """Call after a high watermark moved: the checkpoint will be written within the interval."""
        if not self._checkpoint_due:
            self._checkpoint_due = True
            interval_ms = self._context.config.int_value(HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS)
            self._context.out.set_timer(CHECKPOINT_TIMER, now_ms + interval_ms)

    def write_checkpoint(self) -> None:
        """Writes the high watermarks of open replicas; logs that are not open yet keep what was known of them."""
        self._checkpoint_due = False
        present = set(self._context.storage.log_names())
        self._checkpoint = {name: offset for name, offset in self._checkpoint.items() if name in present} | {
            log_name(key): replica.log.high_watermark for key, replica in sorted(self._context.replicas.items())
        }
        self._context.storage.write_file(CHECKPOINT_FILE, json.dumps(self._checkpoint).encode())
        self._forgotten = False

    def flush_all(self) -> None:
        """Flushes every log and the checkpoint (controlled shutdown, or an operator's request)."""
        for replica in self._context.replicas.values():
            replica.log.storage.flush()
        self.write_checkpoint()

    def save_producers(self) -> None:
        """What the logs know of their producers need not be read from them at the next start; call after
        `flush_all`.
        """
        for replica in self._context.replicas.values():
            replica.log.save_producers()
