"""What the broker nodes of all generations share: the replicas with their parts (`protocol/broker`), the messages and
timers of these parts, and what is sent at the end of an input.

The node of a generation adds how the broker belongs to its cluster and where its metadata come from (`broker.py`,
`v3/broker/node.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from protocol.broker.context import BrokerContext
from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.broker.fetch_sessions import FETCH_WAIT_PREFIX, FetchSessions
from protocol.broker.fetcher import FETCH_PREFIX, Fetcher
from protocol.broker.flushing import CHECKPOINT_TIMER, FLUSH_PREFIX, RETENTION_TIMER, Flusher
from protocol.broker.isr_manager import ALTER_PARTITION_TIMER, LAG_PREFIX, SILENT_PREFIX, IsrManager
from protocol.broker.leader import ISR_RETRY_TIMER, PartitionLeader
from protocol.broker.lifecycle import LifecycleState
from protocol.broker.reads import READ_TIMER, Reads
from protocol.broker.recovery import RECOVERY_PREFIX, DataLossHook, LeaderRecovery
from protocol.broker.replicas import ReplicaManager
from protocol.broker.services import BrokerServices
from protocol.contract import Effect
from protocol.ids import NodeId, TimeMs
from protocol.log.checksum import Checksum
from protocol.messages.admin import MetadataRequest
from protocol.messages.base import ClientRequest, Message
from protocol.messages.control import AlterPartitionResponse
from protocol.messages.data import (
    ConsumeRequest,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)

STOPPED: Final = LifecycleState.STOPPED
"""Every input reads it; Python 3.11 finds a global name in a tenth of the time of a member of an enumeration."""


class BaseBroker:
    """A broker with the replicas of `context`, whose ISR proposals `isr` carries out. A generation adds to the tables
    of handlers. It is no ABC: observers ask nodes for their class at every event, which takes several times as long.

    - `data_loss_hook`: the routine after an unclean election (KIP-704).
    - `checksum`: computes the CRC-32C by which batches of clients are checked; None skips the check.
    """

    # Tables of the parts' methods, and a part that only refers to others.
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_services", "_handlers", "_timers"})

    def __init__(
        self, context: BrokerContext, isr: IsrManager, data_loss_hook: DataLossHook, checksum: Checksum | None
    ) -> None:
        self.node_id = context.me
        self.config = context.config
        self.storage = context.storage
        self._out = context.out
        self._context = context
        self._flusher = Flusher(context)
        self._isr = isr
        self._recovery = LeaderRecovery(context, isr, data_loss_hook)
        self._reads = Reads(context)
        self._leader = PartitionLeader(context, self._flusher, isr, self._recovery, self._reads)
        self._fetcher = Fetcher(context, self._flusher)
        self._replica_manager = ReplicaManager(context, self._flusher, self._leader, self._fetcher)
        self._services = BrokerServices(context, self._leader, self._reads, checksum)
        self._handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], None]] = {
            AlterPartitionResponse: self._leader.receive_alter_partition,
            FetchRequest: self._leader.fetch,
            FetchRenewal: self._leader.renew,
            FetchResponse: self._fetcher.receive,
            ProduceRequest: self._services.produce,
            ConsumeRequest: self._services.consume,
            ListOffsetsRequest: self._services.list_offsets,
            OffsetForLeaderEpochRequest: self._services.end_of_epoch,
            MetadataRequest: self._services.describe,
        }
        self._timers: dict[str, Callable[[TimeMs, str], None]] = {
            FETCH_PREFIX: self._fetcher.fire,
            FETCH_WAIT_PREFIX: self._leader.fetch_sessions.fire,
            PRODUCE_TIMER: self._leader.delayed_produces.fire,
            LAG_PREFIX: self._leader.isr_shrink.fire_lag,
            SILENT_PREFIX: self._leader.isr_shrink.fire_silent,
            ISR_RETRY_TIMER: self._leader.fire_isr_retry,
            ALTER_PARTITION_TIMER: self._isr.fire,
            READ_TIMER: self._reads.fire,
            RECOVERY_PREFIX: self._recovery.fire,
            CHECKPOINT_TIMER: self._flusher.fire_checkpoint,
            FLUSH_PREFIX: self._flusher.fire_flush,
            RETENTION_TIMER: self._flusher.fire_retention,
        }

    @property
    def context(self) -> BrokerContext:
        """Replicas and image, for hosts and checkers to read; never to change."""
        return self._context

    @property
    @abstractmethod
    def state(self) -> LifecycleState:
        """Where the broker is in its lifecycle."""

    @property
    def fetch_sessions(self) -> FetchSessions:
        return self._leader.fetch_sessions

    @property
    def fetcher(self) -> Fetcher:
        return self._fetcher

    def flush_all(self) -> None:
        """Flushes every log to the disk, for an operator. StorageError where that fails."""
        self._flusher.flush_all()

    def withdraw(self, client: NodeId, number: int, request: ClientRequest) -> None:
        """Forgets a request of a client with the correlation id `number`, if it is delayed: it gets no response."""
        if isinstance(request, ConsumeRequest):
            self._reads.withdraw(client, number, request)
        elif isinstance(request, ProduceRequest):
            self._leader.delayed_produces.withdraw(client, number, request)

    @abstractmethod
    def start(self, now_ms: TimeMs) -> list[Effect]:
        """As in `Node`, and so the two below."""

    @abstractmethod
    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]: ...

    @abstractmethod
    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]: ...

    def _send_queued(self, now_ms: TimeMs) -> None:
        """Sends what the parts have queued during one input: fetch responses, fetch requests, and ISR proposals."""
        context = self._context
        if context.has_queued and self.state is not STOPPED:
            context.has_queued = False
            self._leader.fetch_sessions.flush(now_ms)
            self._fetcher.send_changed_fetches(now_ms)
            self._isr.send_queued(now_ms)

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        self._send_queued(now_ms)
        return self._out.drain()
