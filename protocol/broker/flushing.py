"""When a broker flushes its logs, deletes old segments, and checkpoints high watermarks.

- Flush: after `flush.messages` records, and `flush.ms` after the first unflushed record. By default neither applies,
  since Kafka relies on replication for durability.
- Checkpoint: a file with the high watermarks, written at most every `replica.high.watermark.checkpoint.interval.ms`. A
  restarted broker begins with these, which may be lower than before the restart (A29). An unreadable file is reported
  as a `storage_error`; high watermarks then begin at the log start.
- Retention (`protocol.log.replica_log`): every `log.retention.check.interval.ms`, while any log has a closed segment;
  of topics whose `cleanup.policy` has `delete`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, TypeAdapter, ValidationError

from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.config import (
    CLEANUP_POLICY,
    DELETE,
    FLUSH_MESSAGES,
    FLUSH_MS,
    HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS,
    LOG_RETENTION_CHECK_INTERVAL_MS,
    NEVER,
    RETENTION_BYTES,
    RETENTION_MS,
)
from protocol.errors import CorruptLogError
from protocol.events.broker import SegmentsDeleted, StorageFailed
from protocol.ids import Offset, TimeMs, TopicIdPartition
from protocol.log.replica_log import retained_from

CHECKPOINT_FILE = "replication-offset-checkpoint.json"
CHECKPOINT_TIMER = "high-watermark-checkpoint"
FLUSH_PREFIX = "flush/"
RETENTION_TIMER = "log-retention"
_OFFSETS = TypeAdapter(dict[str, Annotated[int, Field(ge=0, strict=True)]])


class Flusher:
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_flush_due", "_checkpoint_due", "_retention_timer_is_set"})

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._flush_due: set[TopicIdPartition] = set()
        self._checkpoint_due = False
        self._has_forgotten = False
        self._retention_timer_is_set = False
        self._checkpoint: dict[str, Offset] = {}
        data = context.storage.read_file(CHECKPOINT_FILE)
        try:
            self._checkpoint = {} if data is None else _OFFSETS.validator.validate_json(data)
        except ValidationError as error:
            reason = f"{CHECKPOINT_FILE}: no high watermarks: {error.errors()[0]['msg']}"
            context.out.trace(StorageFailed(None, reason, halted=False))

    def checkpointed_high_watermark(self, key: TopicIdPartition) -> Offset:
        """The high watermark of a partition in the checkpoint file, 0 without one."""
        return self._checkpoint.get(log_name(key), 0)

    def forget(self, key: TopicIdPartition) -> None:
        """Drops the checkpointed high watermark of a log that was deleted; `write_forgotten` makes that durable."""
        self._has_forgotten = self._checkpoint.pop(log_name(key), None) is not None or self._has_forgotten

    def write_forgotten(self) -> None:
        """Writes the checkpoint file if `forget` has changed it; call before a new log gets records."""
        if self._has_forgotten:
            self.write_checkpoint()

    def appended(self, replica: Replica, now_ms: TimeMs) -> None:
        """Call after every append: flushes, or sets the flush timer, as the topic's configs require."""
        self.watch_retention(replica, now_ms)
        image, storage = self._context.image, replica.log.storage
        if storage.end_offset - storage.flushed_offset >= image.int_config(replica.key.topic_id, FLUSH_MESSAGES):
            storage.flush()
            return
        flush_ms = image.int_config(replica.key.topic_id, FLUSH_MS)
        if flush_ms != NEVER and replica.key not in self._flush_due:
            self._flush_due.add(replica.key)
            self._context.out.set_timer(FLUSH_PREFIX + log_name(replica.key), now_ms + flush_ms)

    def fire_flush(self, now_ms: TimeMs, log: str) -> None:
        """`flush.ms` of the log `log` (as `log_name` names it) is over: flushes it."""
        topic_id, partition = log.rsplit("/", 1)
        key = TopicIdPartition(topic_id, int(partition))
        self._flush_due.discard(key)
        replica = self._context.replicas.get(key)
        if replica is not None:
            replica.log.storage.flush()

    def watch_retention(self, replica: Replica, now_ms: TimeMs) -> None:
        """Sets the retention timer if the log has a closed segment; call after appends and when a log is opened."""
        if replica.log.has_closed_segments and not self._retention_timer_is_set:
            self._retention_timer_is_set = True
            interval_ms = self._context.config.int_value(LOG_RETENTION_CHECK_INTERVAL_MS)
            self._context.out.set_timer(RETENTION_TIMER, now_ms + interval_ms)

    def fire_retention(self, now_ms: TimeMs, _: str) -> None:
        """Deletes the segments that exceed the retention configs; sets the timer again while any closed one is left."""
        self._retention_timer_is_set = False
        for replica in self._context.replicas.values():
            if replica.log.has_closed_segments:
                self._delete_old_segments(replica, now_ms)
                self.watch_retention(replica, now_ms)

    def _delete_old_segments(self, replica: Replica, now_ms: TimeMs) -> None:
        image, log, topic_id = self._context.image, replica.log, replica.key.topic_id
        if DELETE not in str(image.config(topic_id, CLEANUP_POLICY)):
            return
        retention_ms, retention_bytes = (image.int_config(topic_id, name) for name in (RETENTION_MS, RETENTION_BYTES))
        try:
            segments = log.storage.segments()
            offset = retained_from(segments, log.high_watermark, now_ms, retention_ms, retention_bytes)
            if log.delete_segments_before(offset):
                self._context.out.trace(SegmentsDeleted(replica.name, log.start_offset))
        except CorruptLogError as error:
            self._context.report_damage(replica, error)

    def high_watermark_moved(self, now_ms: TimeMs) -> None:
        """Call after a high watermark has moved: sets the checkpoint timer."""
        if not self._checkpoint_due:
            self._checkpoint_due = True
            interval_ms = self._context.config.int_value(HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS)
            self._context.out.set_timer(CHECKPOINT_TIMER, now_ms + interval_ms)

    def fire_checkpoint(self, now_ms: TimeMs, _: str) -> None:
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Writes the high watermarks of open replicas; logs that are not open yet keep their checkpointed ones."""
        self._checkpoint_due = False
        reached = {log_name(key): replica.log.high_watermark for key, replica in sorted(self._context.replicas.items())}
        if closed := self._checkpoint.keys() - reached.keys():
            present = closed.intersection(self._context.storage.log_names())
            reached |= {name: self._checkpoint[name] for name in sorted(present)}
        self._checkpoint = reached
        self._context.storage.write_file(CHECKPOINT_FILE, _OFFSETS.serializer.to_json(self._checkpoint))
        self._has_forgotten = False

    def flush_all(self) -> None:
        """Flushes every log and the checkpoint (controlled shutdown, or an operator's request)."""
        for replica in self._context.replicas.values():
            replica.log.storage.flush()
        self.write_checkpoint()

    def save_producers(self) -> None:
        """Saves the producer states, so that the next start need not scan the logs; call after `flush_all`."""
        for replica in self._context.replicas.values():
            replica.log.save_producers()
