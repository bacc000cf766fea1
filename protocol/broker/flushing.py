"""When a broker writes its logs through to the disk, and what it remembers of high watermarks.

Kafka leaves durability to replication: by default nothing is flushed by policy. `flush.messages` flushes after so
many records, `flush.ms` so long after the first unflushed record. High watermarks are written to a checkpoint file at
most every `replica.high.watermark.checkpoint.interval.ms`, so that a restarted broker starts from a recent one, which
may lag (A29).
"""

from __future__ import annotations

import json

from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.config import FLUSH_MESSAGES, FLUSH_MS, HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS, NEVER
from protocol.ids import Offset, TimeMs, TopicIdPartition

CHECKPOINT_FILE = "replication-offset-checkpoint.json"
CHECKPOINT_TIMER = "high-watermark-checkpoint"
FLUSH_PREFIX = "flush/"


class Flusher:
    """Applies the flush policy and keeps the high watermark checkpoint of one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._flush_due: set[TopicIdPartition] = set()
        self._checkpoint_due = False
        self._forgotten = False
        data = context.storage.read_file(CHECKPOINT_FILE)
        self._checkpoint: dict[str, Offset] = {} if data is None else json.loads(data)

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
        image, storage = self._context.image, replica.log.storage
        flush_messages = image.config(replica.key.topic_id, FLUSH_MESSAGES)
        if storage.end_offset - storage.flushed_offset >= int(flush_messages):
            storage.flush()
            return
        flush_ms = int(image.config(replica.key.topic_id, FLUSH_MS))
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

    def high_watermark_moved(self, now_ms: TimeMs) -> None:
        """Call after a high watermark moved: the checkpoint will be written within the interval."""
        if not self._checkpoint_due:
            self._checkpoint_due = True
            interval_ms = self._context.config.int_value(HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS)
            self._context.out.set_timer(CHECKPOINT_TIMER, now_ms + interval_ms)

    def write_checkpoint(self) -> None:
        """Writes the high watermarks of open replicas; logs that are not open yet keep what was known of them."""
        self._checkpoint_due, self._forgotten = False, False
        present = set(self._context.storage.log_names())
        self._checkpoint = {name: offset for name, offset in self._checkpoint.items() if name in present} | {
            log_name(key): replica.log.high_watermark for key, replica in sorted(self._context.replicas.items())
        }
        self._context.storage.write_file(CHECKPOINT_FILE, json.dumps(self._checkpoint).encode())

    def flush_all(self) -> None:
        """Flushes every log and the checkpoint (controlled shutdown, or an operator's wish)."""
        for replica in self._context.replicas.values():
            replica.log.storage.flush()
        self.write_checkpoint()
