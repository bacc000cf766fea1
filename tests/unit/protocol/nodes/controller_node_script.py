"""The commands of transcripts about a controller node: messages of brokers and users, its timers, its metrics.

Each command prints in one line the new records, the answers (`to 0: epoch 4`), sessions that restart or end, and the
partition `t-0` where it has changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from experiments.engines.admin_requests import create_topic
from experiments.support.metadata_fetch import metadata_fetch
from protocol import metrics
from protocol.config import ClusterConfig
from protocol.contract import CancelTimer, Effect, Exit, Send, SetTimer
from protocol.controller.recovery_requests import RECOVERY_TIMER
from protocol.errors import ErrorCode
from protocol.events.controller import AlertRaised
from protocol.features import Generation
from protocol.ids import RECOVERY_MANAGER
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    PartitionIsrProposal,
    PartitionIsrResult,
)
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import QuorumFetchResponse
from protocol.messages.recovery import PartitionRecoveryResult, RecoverPartitions, RecoveryResults, ReplicaAnswer
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_sessions import SESSION_PREFIX
from tests.unit.protocol.admin_script import AdminScript
from tests.unit.protocol.controller.controller_script import parsed
from tests.unit.protocol.node_helpers import CLIENT
from tests.unit.protocol.nodes.controller_bench import Bench
from tests.unit.protocol.partition_words import said_of, said_of_record
from tests.unit.protocol.transcripts import Command, listed, numbers


class ControllerNodeScript(AdminScript):
    """A controller alone in its quorum; `serve` gives it brokers and topic `t` on the first three."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.config: ClusterConfig | None = None
        self.before: tuple[int, PartitionState | None] = (0, None)
        self.known: Mapping[str, int] = {}
        self.alerts: list[str] = []
        self.results: RecoveryResults | None = None

    def run(self, text: str) -> list[str]:
        records, state = len(self.bench.node.records), self.partition
        self.bench.effects = []
        printed = super().run(text)
        effects, self.bench.effects = self.bench.effects, []
        self.alerts += [effect.text() for effect in effects if isinstance(effect, AlertRaised)]
        if text.split()[0] in ("given", "as", "serve", "controller", "restart", "come"):
            return printed
        new = list(self.bench.node.records)[records:]
        line = [
            said_of_record(record, lambda topic_id: self.bench.node.state.image.topics[topic_id].name) for record in new
        ]
        line += filter(None, map(self.said, effects))
        line += [f"t-0 {said_of(self.partition)}"] if self.partition not in (None, state) else []
        return [*printed, " | ".join(line)] if line else printed

    def name_of(self, topic_id: str) -> str:
        return self.bench.node.state.image.topics[topic_id].name

    @property
    def partition(self) -> PartitionState | None:
        topic = self.bench.node.state.image.topic_named("t")
        return None if topic is None else topic.partitions[0]

    # -- what is given -------------------------------------------------------------------------------------------------

    def do_controller(self, command: Command) -> None:
        """`controller generation=kip-966-elr unclean.recovery.strategy=manual`: it has just become active."""
        generation = Generation(command.get("generation", "kip-966"))
        self.config = ClusterConfig.of(generation, {name: parsed(v) for name, v in command.named(_has_dot).items()})
        self.bench, self.alerts = Bench(config=self.config), []
        self.known = dict.fromkeys(self.bench.node.metrics(), 0)

    def do_serve(self, command: Command) -> None:
        """`serve 0-3 min_isr=1 ...`: as `controller`, with brokers that are unfenced, and `t` on 0, 1, 2."""
        brokers, min_isr = numbers(command.next("0-2")), command.number("min_isr", 2)
        self.do_controller(command)
        for broker in brokers:
            self.bench.register(broker)
            self.bench.beat(broker)
        self.bench.administer(create_topic("t", ((0, 1, 2),), {"min.insync.replicas": min_isr}))
        for broker in brokers if len(brokers) > 3 else ():
            self.bench.receive(broker, metadata_fetch(self.bench.node, broker))
        self.known = self.bench.node.metrics()

    def do_restart(self, command: Command) -> None:
        """The next incarnation of the controller, on the same disk."""
        now_ms, self.bench = self.bench.now_ms, Bench(self.bench.storage, self.config, self.bench.now_ms)
        self.alerts += [effect.text() for effect in self.bench.effects if isinstance(effect, AlertRaised)]
        self.bench.now_ms, self.bench.effects = now_ms, []

    def do_at(self, command: Command) -> None:
        self.bench.now_ms = int(command.next())

    # -- brokers -------------------------------------------------------------------------------------------------------

    def do_register(self, command: Command) -> None:
        """`register 0 two previous=4`: incarnation, and the broker epoch of the one before it."""
        broker, incarnation, previous = int(command.next()), command.next("one"), command.get("previous", "-1")
        known = self.bench.node.state.image.broker_epoch(broker)
        epoch = int(previous) if previous != "same" else -1 if known is None else known
        request = BrokerRegistrationRequest(
            correlation_id=4, broker_id=broker, incarnation_id=incarnation, previous_broker_epoch=epoch
        )
        self.bench.receive(broker, request)

    def do_beat(self, command: Command) -> None:
        """`beat 0 want_shut_down offset=4 epoch=5 id=9`: by default with the registered epoch and all of the log."""
        broker, image = int(command.next()), self.bench.node.state.image
        self.bench.number += 1
        request = BrokerHeartbeatRequest(
            correlation_id=command.number("id", self.bench.number),
            broker_id=broker,
            broker_epoch=command.number("epoch", image.broker_epoch(broker) or 0),
            current_metadata_offset=command.number("offset", image.next_offset),
            want_fence=command.flag("want_fence"),
            want_shut_down=command.flag("want_shut_down"),
        )
        self.bench.receive(broker, request)

    def do_come(self, command: Command) -> None:
        """`come 1 two`: a broker registers and is unfenced; it prints nothing."""
        broker = command.next()
        for text in (shlex.join(["register", broker, *command.words()]), f"beat {broker}", f"beat {broker}"):
            self.run(text)

    def do_lose(self, command: Command) -> None:
        """The sessions of these brokers end."""
        for broker in numbers(command.next()):
            self.bench.effects += self.bench.node.fire(self.bench.now_ms, f"{SESSION_PREFIX}{broker}")

    def do_propose(self, command: Command) -> None:
        """`propose 0,1 by=0 epoch=4 id=7`: the leader, or another broker, proposes an ISR for `t-0`."""
        image, state = self.bench.node.state.image, self.partition
        assert state is not None
        leader, self.bench.number = command.number("by", state.leader), self.bench.number + 1
        proposal = PartitionIsrProposal(
            topic_id=image.topic_ids["t"],
            partition_id=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=command.number("partition_epoch", state.partition_epoch),
            new_isr=tuple(
                BrokerState(broker_id=broker, broker_epoch=image.broker_epoch(broker) or 0)
                for broker in numbers(command.next())
            ),
        )
        request = AlterPartitionRequest(
            correlation_id=command.number("id", self.bench.number),
            broker_id=leader,
            broker_epoch=command.number("epoch", image.broker_epoch(leader) or 0),
            partitions=() if command.flag("empty") else (proposal,),
        )
        self.bench.receive(leader, request)

    def do_fetch(self, command: Command) -> None:
        """`fetch 0-2 behind=1`: these brokers ask for metadata from the end of the log on, or from before it."""
        for broker in numbers(command.next()):
            offset = self.bench.node.state.image.next_offset - command.number("behind", 0)
            self.bench.receive(broker, metadata_fetch(self.bench.node, broker, offset=offset))

    # -- users and the recovery manager --------------------------------------------------------------------------------

    def ask(self, request: AdminRequest) -> Iterator[str]:
        self.bench.receive(CLIENT, request)
        return iter(())

    def do_recover(self, command: Command) -> None:
        """The controller repeats its request of a recovery: the manager remembers which replicas were queried."""
        self.bench.effects = self.bench.node.fire(self.bench.now_ms, RECOVERY_TIMER)
        [recovery] = self.bench.sent(RecoverPartitions).recoveries
        answers = tuple(
            ReplicaAnswer(
                broker_id=each.broker_id, broker_epoch=each.broker_epoch, last_written_leader_epoch=0, log_end_offset=1
            )
            for each in recovery.replicas
        )
        result = PartitionRecoveryResult(
            recovery_id=recovery.recovery_id,
            topic_id=recovery.topic_id,
            partition_id=recovery.partition_id,
            leader_epoch=recovery.leader_epoch,
            leader=int(command.next()),
            reason="it won",
            answers=answers,
        )
        self.results = RecoveryResults(results=(result,))

    def do_result(self, command: Command) -> None:
        """The manager's result of what was last remembered."""
        assert self.results is not None
        self.bench.receive(RECOVERY_MANAGER, self.results)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def do_metrics(self, command: Command) -> Iterator[str]:
        """The metrics that have changed since this was last asked for; of a summary count/sum/last/max."""
        before, self.known = self.known, dict(self.bench.node.metrics())
        parts = ("count", "sum", "last", "max")
        found = []
        for name in metrics.SUMMARIES:
            after = [self.known[f"{name}_{part}"] for part in parts]
            if after != [before[f"{name}_{part}"] for part in parts]:
                found.append(f"{name.rpartition('.')[2]}={'/'.join(map(str, after))}")
        summaries = {f"{name}_{part}" for name in metrics.SUMMARIES for part in parts}
        for name, value in self.known.items():
            if name not in summaries and value != before[name]:
                found.append(f"{name.rpartition('.')[2]}={value}")
        yield " ".join(found) or "no change"

    def do_alerts(self, command: Command) -> Iterator[str]:
        """What was alerted to since this was last asked for."""
        alerts, self.alerts = self.alerts, []
        yield " | ".join(alerts) or "no alerts"

    def said(self, effect: Effect) -> str:
        match effect:
            case Send():
                return self.said_of_answer(effect)
            case SetTimer() if effect.name.startswith(SESSION_PREFIX):
                return f"{effect.name} until {effect.at_ms}"
            case CancelTimer() if effect.name.startswith(SESSION_PREFIX):
                return f"{effect.name} over"
            case Exit():
                return "exit"
        return ""

    def said_of_answer(self, effect: Send) -> str:
        message, to = effect.message, "user" if effect.to == CLIENT else effect.to
        match message:
            case BrokerRegistrationResponse() if message.error is ErrorCode.NONE:
                return f"to {to}: epoch {message.broker_epoch}"
            case BrokerHeartbeatResponse() if message.error is ErrorCode.NONE:
                flags = ["fenced" if message.is_fenced else "unfenced", *["caught up"] * message.is_caught_up]
                return f"to {to}: {', '.join([*flags, *['may shut down'] * message.should_shut_down])}"
            case AlterPartitionResponse() if message.error is ErrorCode.NONE:
                return f"to {to}: {', '.join(map(_result, message.partitions))}"
            case QuorumFetchResponse():
                counts = [(batch.base_offset, len(unpack_records(batch.payload))) for batch in message.batches]
                records = listed(f"{base}+{count}" for base, count in counts)
                return f"to {to}: records {records} committed {message.high_watermark}"
            case AdminResponse():
                error, text = message.failure()
                return "" if error is ErrorCode.NONE else f"to {to}: {error.name}: {text}"
            case AlterPartitionResponse():
                return f"to {to}, {message.correlation_id}: {message.error.name}"
            case BrokerRegistrationResponse() | BrokerHeartbeatResponse():
                return f"to {to}: {message.error.name}"
        return ""


def _result(part: PartitionIsrResult) -> str:
    if part.error is not ErrorCode.NONE:
        return part.error.name
    return f"NONE isr={listed(part.isr)} epochs={part.leader_epoch}/{part.partition_epoch}"


def _has_dot(name: str) -> bool:
    return "." in name
