"""The commands of transcripts about a broker node and its controller: those of `BrokerScript`, and more.

Beside what that prints: registrations (`register A previous -1`: incarnations in the order in which they appear),
heartbeats, fetches of the metadata log, and the state of the broker where that has changed.
"""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.messages.quorum import QuorumFetchRequest, QuorumFetchResponse
from tests.unit.protocol.broker.broker_script import BrokerScript
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, EPOCH, registrations
from tests.unit.protocol.transcripts import Command, numbers


class BrokerNodeScript(BrokerScript):
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.incarnations: list[str] = []
        self.heartbeat = 1

    def run(self, text: str) -> list[str]:
        before = self.bench.node.state
        printed = super().run(text)
        quiet = text.split()[0] in ("broker", "given", "run", "topic", "timer")
        return printed if quiet or self.bench.node.state is before else [*printed, f"is {self.bench.node.state.name}"]

    def do_boot(self, command: Command) -> None:
        """The broker starts."""
        self.bench.start()

    def do_registered(self, command: Command) -> None:
        """`registered epoch=9 error=... as=A`: the controller answers the last registration, or incarnation A."""
        fields: dict[str, object] = {"error": ErrorCode[command.get("error", "NONE")]}
        if epoch := command.get("epoch"):
            fields["broker_epoch"] = int(epoch)
        if name := command.get("as"):
            fields["incarnation_id"] = self.incarnations[ord(name) - ord("A")]
        self.bench.registered(**fields)

    def do_beaten(self, command: Command) -> None:
        """`beaten fenced`: the controller's answer to the newest heartbeat; `older`: to the one before; `may-leave`."""
        number = self.heartbeat - command.flag("older")
        fenced, leaves = command.flag("fenced"), command.flag("may-leave")
        error = ErrorCode[command.get("error", "NONE")]
        self.bench.heartbeat_answered(correlation_id=number, is_fenced=fenced, should_shut_down=leaves, error=error)

    def do_shutdown(self, command: Command) -> None:
        self.bench.receive(CLIENT, ShutdownCommand())

    def do_metadata(self, command: Command) -> None:
        """`metadata 0,1 fenced=0,1 part=0:1`: committed records that register and unfence brokers, or a part."""
        records = registrations(numbers(command.next("0-2")), numbers(command.get("fenced")))
        first, _, end = command.get("part", "0:99").partition(":")
        if self.bench.node.replica.leader != CONTROLLER:
            self.bench.fetched_metadata()
        self.bench.fetched_metadata(*records[int(first) : int(end)])

    def do_epoch(self, command: Command) -> None:
        """`epoch 2 leader=1001`: the response of any controller in another epoch of the quorum."""
        epoch, leader = int(command.next()), command.number("leader", -1)
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = QuorumFetchResponse(correlation_id=0, error=error, leader_id=leader, leader_epoch=EPOCH - 1 + epoch)
        self.bench.receive(command.number("by", CONTROLLER), response)

    def said_of_message(self, to: NodeId, message: Message) -> str:
        match message:
            case BrokerRegistrationRequest():
                if message.incarnation_id not in self.incarnations:
                    self.incarnations.append(message.incarnation_id)
                name = chr(ord("A") + self.incarnations.index(message.incarnation_id))
                return f"register {name} at {to} as {message.broker_id} previous {message.previous_broker_epoch}"
            case BrokerHeartbeatRequest():
                self.heartbeat = message.correlation_id
                wants = ["wants to be fenced"] * message.want_fence + ["wants to leave"] * message.want_shut_down
                stands = f"epoch {message.broker_epoch} offset {message.current_metadata_offset}"
                return ", ".join([f"heartbeat to {to} {stands}", *wants])
            case QuorumFetchRequest():
                return f"metadata from {to} at {message.fetch_offset} epoch {message.current_leader_epoch}"
        return super().said_of_message(to, message)
