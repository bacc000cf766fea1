"""The requests that a broker serves for clients and the recovery manager: each is validated, then handed to the part
that serves it, or answered from the metadata image.
"""

from __future__ import annotations

from protocol.broker.admission import consume_error, list_offsets_error, produce_error
from protocol.broker.context import BrokerContext
from protocol.broker.leader import PartitionLeader
from protocol.broker.log_info import replica_log_info
from protocol.broker.reads import Reads
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.recovery import GetReplicaLogInfoRequest
from protocol.metadata.describe import metadata_response
from protocol.metadata.queries import answer


class BrokerServices:
    """Handlers `(now_ms, sender, request)` of one broker; `checksum` as in `BrokerNode`."""

    def __init__(
        self, context: BrokerContext, leader: PartitionLeader, reads: Reads, checksum: Checksum | None
    ) -> None:
        self._context = context
        self._leader = leader
        self._reads = reads
        self._checksum = checksum

    def describe(self, now_ms: TimeMs, sender: NodeId, request: MetadataRequest) -> None:
        """Answers with the leaders of a topic."""
        self._context.out.send(sender, metadata_response(self._context.image, request))

    def answer_query(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        """Answers a request that only reads the metadata."""
        self._context.out.send(sender, answer(self._context.image, self._context.controller_id, request))

    def send_log_info(self, now_ms: TimeMs, sender: NodeId, request: GetReplicaLogInfoRequest) -> None:
        """Answers the recovery manager with the ends of logs."""
        self._context.out.send(sender, replica_log_info(self._context, request))

    def produce(self, now_ms: TimeMs, sender: NodeId, request: ProduceRequest) -> None:
        """Appends a batch, or answers why not."""
        error = produce_error(self._context.image, request, self._checksum, now_ms)
        if error is ErrorCode.NONE:
            self._leader.produce(now_ms, sender, request)
        elif request.acks != 0:
            self._context.out.send(sender, ProduceResponse(correlation_id=request.correlation_id, error=error))

    def consume(self, now_ms: TimeMs, sender: NodeId, request: ConsumeRequest) -> None:
        """Reads for a consumer, or answers why not."""
        error = consume_error(self._context.image, request)
        if error is ErrorCode.NONE:
            self._reads.consume(now_ms, sender, request)
        else:
            self._context.out.send(sender, ConsumeResponse(correlation_id=request.correlation_id, error=error))

    def list_offsets(self, now_ms: TimeMs, sender: NodeId, request: ListOffsetsRequest) -> None:
        """Answers with an offset of a log, or why not."""
        error = list_offsets_error(self._context.image, request)
        if error is ErrorCode.NONE:
            self._reads.list_offsets(sender, request)
        else:
            self._context.out.send(sender, ListOffsetsResponse(correlation_id=request.correlation_id, error=error))
