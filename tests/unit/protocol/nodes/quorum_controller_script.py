"""The commands of transcripts about one controller of three: the test plays the voters 1001 and 1002, and its clients.

A command prints what the controller sends, its trace events except those of the quorum, and sessions of brokers. Before
a majority of the voters has the records that an effect is about, only messages of the quorum may appear.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

from experiments.engines import admin_requests
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import ClusterConfig
from protocol.contract import CancelTimer, Effect, Exit, Send, SetTimer
from protocol.controller.recovery_requests import ELECTIONS_TIMER
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.registry import detail_of
from protocol.features import METADATA_VERSION, Generation
from protocol.messages.admin import AdminRequest, AdminResponse, MetadataRequest
from protocol.messages.base import Message, Response
from protocol.messages.cluster import DescribeClusterRequest
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import BrokerHeartbeatResponse, BrokerRegistrationResponse
from protocol.messages.metadata_batch import pack_records
from protocol.messages.partitions import ElectionType
from protocol.messages.quorum import QuorumFetchResponse, QuorumRequest, RemoveVoterRequest
from protocol.messages.records import FeatureLevelRecord, MetadataRecord, RegisterControllerRecord
from protocol.messages.topics import DescribeTopicRequest
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.quorum.context import ELECTION_TIMER
from tests.unit.protocol.controller.controller_script import parsed
from tests.unit.protocol.node_helpers import CLIENT, fencing, registrations
from tests.unit.protocol.quorum.quorum_helpers import KEYS, ME, Bench, leader_change, standing_by
from tests.unit.protocol.transcripts import Command, Script, listed, numbers

FIELDS = {
    "committed": ("base_offset", "end_offset"),
    "broker_registration": ("broker", "fenced"),
    "partition": ("leader",),
    "session_expired": ("broker",),
    "controller_started": ("next_offset",),
    "controller_resigned": ("next_offset",),
    "refused": ("message", "error"),
}
"""The trace events that are printed, and their fields."""


class QuorumControllerScript(Script):
    """Controller 1000; all records of others than the quorum are about brokers and topic `t`."""

    def __init__(self) -> None:
        self.bench = Bench()

    def run(self, text: str) -> list[str]:
        self.bench.effects = []
        printed = super().run(text)
        effects, self.bench.effects = self.bench.effects, []
        line = [said for effect in effects if (said := self.said(effect))]
        return [*printed, " | ".join(line)] if line else printed

    def do_controller(self, command: Command) -> None:
        """`controller unclean.recovery.strategy=manual`: it has just started."""
        static = {name: parsed(value) for name, value in command.named().items()}
        self.bench = Bench(config=ClusterConfig.of(Generation.KIP_966, static))
        self.bench.effects = []

    def do_elect(self, command: Command) -> None:
        """1001 grants its vote; earlier messages of the election are not printed."""
        self.bench.elect()

    def do_serve(self, command: Command) -> None:
        """It is active, brokers 0 to 2 are unfenced, and `t` is on them; all is committed, and nothing printed."""
        self.bench.serve()
        self.bench.effects = []

    def do_activate(self, command: Command) -> None:
        self.bench.activate()
        self.bench.effects = []

    def do_stand_by(self, command: Command) -> None:
        """1001 is active; brokers 0 to 2 and topic `t` are committed; it prints nothing."""
        self.bench = standing_by()
        self.bench.effects = []

    def do_restart(self, command: Command) -> None:
        self.bench = Bench(self.bench.storage)
        self.bench.effects = []

    def do_fetch(self, command: Command) -> None:
        """`fetch 1002 behind=1`: a voter, by default 1001, fetches at the log end, or before it."""
        voter = int(command.next("1001"))
        self.bench.fetch(voter, self.bench.end - command.number("behind", 0))

    def do_begin(self, command: Command) -> None:
        """1001 announces that it leads the next epoch."""
        self.bench.begin_epoch()

    def do_follow(self, command: Command) -> None:
        """`follow brokers 3 / leader committed=1`: the leader's batches, of which the first are committed."""
        committed = command.number("committed", 0)
        groups = " ".join(command.words()).split(" / ")
        batches = [list(self.records(Command(group))) for group in groups if group]
        self.bench.follow(*batches, committed=committed)

    def records(self, command: Command) -> Iterator[MetadataRecord]:
        """`brokers 3,4`: registrations; `fenced 2`; `leader`: 1001 begins its epoch; `level 3`; `registered`: an
        earlier process of this controller.
        """
        if command.name == "leader":
            yield leader_change(1001)
        elif command.name == "level":
            yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=int(command.next()))
        elif command.name == "registered":
            yield RegisterControllerRecord(controller_id=ME, incarnation_id="earlier")
        elif command.name == "brokers":
            yield from registrations(numbers(command.next()))
        else:
            broker = int(command.next())
            yield fencing(broker, broker, True)

    def do_fire(self, command: Command) -> None:
        """`fire session/0`, `fire election`."""
        name = command.next()
        self.bench.fire(ELECTION_TIMER if name == "election" else name)

    def do_at(self, command: Command) -> None:
        self.bench.now_ms = int(command.next())

    def do_register(self, command: Command) -> None:
        self.bench.register(int(command.next()), command.next("one"))

    def do_beat(self, command: Command) -> None:
        broker, wants = int(command.next()), command.flag("want_shut_down")
        fields: dict[str, object] = {"correlation_id": int(number)} if (number := command.get("id")) else {}
        self.bench.beat(broker, want_shut_down=wants, **fields)

    def do_replay(self, command: Command) -> None:
        """`replay 1 behind=1`: broker 1 fetches metadata, and knows the high watermark or one before it."""
        broker = int(command.next())
        known = metadata_fetch(self.bench.node, broker)
        behind = command.number("behind", 0)
        self.bench.receive(broker, replace(known, high_watermark=known.high_watermark - behind))

    def do_ask(self, command: Command) -> None:
        """`ask create u id=13`, `ask describe u`, `ask metadata u`, `ask cluster`, `ask elect`, `ask remove-me`,
        `ask level`, `ask unregister-me`."""
        kind, topic, number = command.next(), command.next("t"), command.number("id", 0)
        requests: dict[str, Message] = {
            "create": admin_requests.create_topic(topic, ((0,),)),
            "describe": DescribeTopicRequest(correlation_id=0, topics=(topic,)),
            "metadata": MetadataRequest(correlation_id=0, topic=topic),
            "cluster": DescribeClusterRequest(correlation_id=0),
            "level": admin_requests.update_feature(METADATA_VERSION, 3),
            "unregister-me": admin_requests.unregister_controller(ME),
            "elect": admin_requests.elect_leader("t", 0, ElectionType.LONGEST_LOG_BALANCED),
            "remove-me": RemoveVoterRequest(correlation_id=0, voter_id=ME, voter_uuid=KEYS[ME].uuid),
        }
        request = requests[kind]
        assert isinstance(request, AdminRequest | MetadataRequest)
        self.bench.receive(CLIENT, replace(request, correlation_id=number))

    def do_shutdown(self, command: Command) -> None:
        self.bench.receive(CLIENT, ShutdownCommand())

    def do_show(self, command: Command) -> Iterator[str]:
        """Role, offsets of the metadata log, and the image with a checksum of its records."""
        node, image = self.bench.node, self.bench.image
        active = f"active in epoch {node.active_epoch}" if node.is_active else "not active"
        offsets = f"log end {self.bench.end}, committed {node.replica.high_watermark}, applied {image.next_offset}"
        brokers = listed(f"{broker}{' fenced' * found.fenced}" for broker, found in image.brokers.items())
        checksum = f"image {zlib.crc32(pack_records(image.to_records())):08x}"
        yield f"{node.quorum.role}, {active}; {offsets}; {len(node.records)} records published; {checksum}"
        yield f"brokers {brokers}"

    def said(self, effect: Effect) -> str:
        match effect:
            case Send():
                return f"to {effect.to}: {said_of_message(effect.message)}"
            case SetTimer() if effect.name.startswith(SESSION_PREFIX):
                return f"{effect.name} until {effect.at_ms}"
            case CancelTimer() if effect.name.startswith(SESSION_PREFIX) or effect.name == ELECTIONS_TIMER:
                return f"{effect.name} over"
            case Trace() if effect.kind in FIELDS:
                detail = detail_of(effect)
                return " ".join([effect.kind, *(f"{name}={detail[name]}" for name in FIELDS[effect.kind])])
            case Exit():
                return "exit"
        return ""


def said_of_message(message: Message) -> str:
    match message:
        case QuorumFetchResponse():
            return f"records {listed(f'{batch.base_offset}-{batch.next_offset}' for batch in message.batches)}"
        case BrokerRegistrationResponse() if message.error is ErrorCode.NONE:
            return f"registration {message.correlation_id}: epoch {message.broker_epoch}"
        case BrokerHeartbeatResponse() if message.error is ErrorCode.NONE:
            state = "fenced" if message.is_fenced else "unfenced"
            return f"heartbeat {message.correlation_id}: {state}{', may shut down' * message.should_shut_down}"
        case AdminResponse():
            return f"{type(message).__name__} {message.correlation_id}: {message.failure()[0].name}"
        case QuorumRequest():
            return type(message).__name__
        case Response():
            return f"{type(message).__name__} {message.correlation_id}: {message.error.name}"
    return type(message).__name__
