"""The commands of transcripts about a V3 controller: events of brokers, requests of administrators, writes of leaders.

`handle` lets the controller carry out its procedures, and prints each step that has an effect: the transactions
(`write`, each with its operations; `refused` where the store has not carried it out), the commands to brokers (`to 1,2`
with leader/leader epoch, ISR and node version of each partition, or `stop` and the leader epoch), and alerts. What
comes several times in succession is printed once. `t-0` is the node of a partition's leader and ISR, `t` that of a
topic; other nodes have their path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from protocol.errors import ErrorCode, Refused
from protocol.ids import TopicPartition
from protocol.messages.partitions import ElectionType
from protocol.messages.store import Check, Create, Delete, SetData, StoreError, WriteOperation
from protocol.v3.controller.administration import cancel_reassignment, create_topic, delete_topic, request
from protocol.v3.controller.broker_changes import controlled_shutdown, elect_leaders
from protocol.v3.controller.context import Settings
from protocol.v3.controller.isr_updates import IsrChanges, alter_isr, read_overtaken, with_isr, write_isrs
from protocol.v3.controller.procedure import BrokerCommand, Commands, Event, Later, Pause, Procedure, Reads, Writes
from protocol.v3.controller.term import procedures
from protocol.v3.store import paths
from protocol.v3.store.records import REMOVED, LeaderAndIsr, Stored, TopicNode
from tests.unit.protocol.transcripts import Command, Script, listed, numbers
from tests.unit.protocol.v3.controller.procedure_helpers import ADMIN, World, changes


def place(word: str) -> TopicPartition:
    topic, _, index = word.rpartition("-")
    return TopicPartition(topic, int(index))


def path_of(word: str) -> str:
    """`/a/path`, `t` for the node of a topic, `t-0` for the leader and ISR of a partition."""
    if word.startswith("/"):
        return word
    return paths.leader_and_isr(place(word)) if "-" in word else paths.topic(word)


def node_name(path: str) -> str:
    """The inverse of `path_of`."""
    root, names = paths.locate(path)
    if root == paths.TOPICS and len(names) == 1:
        return names[0]
    is_state = root == paths.TOPICS and names[2:] == (paths.LEADER_AND_ISR,)
    return f"{names[0]}-{names[1]}" if is_state else path


class V3Script(Script):
    """Brokers 1 to 4 hold replicas, 8 and 9 are controllers in turn, 8 first. A topic's id is its name in capitals."""

    is_reading = False

    def __init__(self) -> None:
        self.start(World())

    def start(self, world: World) -> None:
        self.world = world
        self.prepared: dict[TopicPartition, Stored] = {}
        self.proposed: dict[str, Any] = {}

    def run(self, text: str) -> list[str]:
        self.world.steps.clear()
        self.world.alerts.clear()
        return [*super().run(text), *self.steps_and_alerts()]

    def steps_and_alerts(self) -> list[str]:
        lines = [line for line, _ in groupby(line for step in self.world.steps for line in self.said(step))]
        lines += [f"alert: {text}" for text, _ in groupby(self.world.alerts)]
        self.world.steps.clear()
        self.world.alerts.clear()
        return lines

    # -- what is given -------------------------------------------------------------------------------------------------

    def do_cluster(self, command: Command) -> None:
        """`cluster t-0=1,2 u-0=3 isr=controller attempts=3`: topics, who writes ISRs, and other `Settings`. Broker 8
        becomes controller, and has initialised the partitions.
        """
        assigned: dict[str, dict[int, tuple[int, ...]]] = {}
        for word, replicas in command.named(lambda name: "-" in name).items():
            assigned.setdefault(place(word).topic, {})[place(word).partition] = numbers(replicas)
        settings: dict[str, Any] = {"leaders_write_isr": command.get("isr", "leader") == "leader"}
        for name, value in command.named().items():
            settings[name] = value == "true" if value in ("true", "false") else int(value)
        self.start(World(settings=Settings(**settings)))
        for name, partitions in assigned.items():
            self.world.create_topic(name, partitions)
        self.world.take_over()
        self.world.steps.clear()

    def do_lead(self, command: Command) -> None:
        """`lead 9`: the controller is deposed, and broker 9 elected; its failover is the next event."""
        self.world.depose()
        self.world.elect(int(command.next()))
        self.world.events.append(Event.FAILOVER)
        self.world.steps.clear()

    def do_only(self, command: Command) -> None:
        """`only controller`: leaders do not write ISRs any more, for the next controller."""
        self.world.settings = Settings(leaders_write_isr=command.next() == "leader")

    def do_damage(self, command: Command) -> None:
        self.world.damage(path_of(command.next()))

    def do_node(self, command: Command) -> None:
        """`node /path DATA` creates it, `node /path gone` deletes it."""
        path, data = path_of(command.next()), command.words()
        write: WriteOperation = (
            Delete(path=path) if data == ["gone"] else Create(path=path, data=" ".join(data).encode())
        )
        [result] = self.world.transact(ADMIN, (write,))
        assert result.error is StoreError.NONE, result

    # -- brokers -------------------------------------------------------------------------------------------------------

    def do_stop(self, command: Command) -> None:
        for broker in numbers(command.next()):
            self.world.stop_broker(broker)

    def do_start(self, command: Command) -> None:
        for broker in numbers(command.next()):
            self.world.start_broker(broker)

    def do_hold(self, command: Command) -> None:
        """`hold 3 gone`: the broker has a replica of a topic that was deleted while it was down."""
        broker, topic_id = self.world.brokers[int(command.next())], command.next()
        broker.replicas[topic_id, 0] = self.world.brokers[1].replicas["T", 0]

    def do_isr(self, command: Command) -> None:
        """`isr t-0 1,3`: the leader writes an ISR."""
        self.world.set_isr(place(command.next()), numbers(command.next()))

    def do_notify(self, command: Command) -> None:
        """`notify 1 t-0 gone-0`: the broker notifies the controller of ISRs that it has written."""
        broker = self.world.brokers[int(command.next())]
        keys = {place(word) for word in command.words()}
        self.world.admin(IsrChanges(broker.broker_id, broker.epoch, keys).notify(0))

    def do_prepare(self, command: Command) -> None:
        """`prepare t-0 1,2`: the leader is about to write an ISR, by the state that it has read."""
        key, isr = place(command.next()), numbers(command.next())
        stored = self.world.stored(key)
        self.prepared[key] = Stored(with_isr(stored.state, isr), stored.version)

    def do_write(self, command: Command) -> Iterator[str]:
        """`write t=T`: the leaders write what they have prepared, of topics with these ids; by default the present."""
        ids = command.named() or self.world.topic_ids()
        written: dict[TopicPartition, int] = self.world.admin(write_isrs(self.prepared, ids))
        yield listed(f"{key.topic}-{key.partition} is version {version}" for key, version in written.items())

    def do_overtaken(self, command: Command) -> Iterator[str]:
        """`overtaken t=T`: what a leader finds whose prepared write was overtaken."""
        ids = command.named() or self.world.topic_ids()
        found: dict[TopicPartition, Stored] = self.world.admin(read_overtaken(self.prepared, ids))
        yield listed(f"{key.topic}-{key.partition} {state_words(stored)}" for key, stored in found.items())

    def do_catch_up(self, command: Command) -> None:
        """All live replicas join the ISRs of their leaders; the steps of the controller are not printed."""
        assert self.world.catch_up()
        self.world.steps.clear()

    def do_shutdown(self, command: Command) -> Iterator[str]:
        """`shutdown 2`, or of an incarnation before: `shutdown 2 earlier`; then the partitions that it still leads."""
        broker = int(command.next())
        epoch = self.world.brokers[broker].epoch - command.flag("earlier")
        left = yield from self.carry_out(controlled_shutdown(self.controller, broker, epoch))
        if left is not None:
            yield f"left: {listed(f'{key.topic}-{key.partition}' for key in left)}"

    def do_propose(self, command: Command) -> Iterator[str]:
        """`propose t-0=1,3 t-1=3,1 recovering=0 u-0@X=4`: one request; `@X` is another topic id. With `as=NAME` it is
        made and sent later: `propose NAME`.
        """
        name, flag = command.get("as"), command.get("recovering")
        request = self.proposed.get(command.next("")) or self.request(command, flag)
        if name:
            self.proposed[name] = request
            return
        response = yield from self.carry_out(alter_isr(self.controller, request))
        if response.error is not ErrorCode.NONE:
            yield response.error.name
        for part in response.partitions:
            state = f"leader={part.leader}/{part.leader_epoch} isr={listed(part.isr)} version={part.partition_epoch}"
            state += " unclean" if part.leader_recovery_state else ""
            yield f"{part.topic_id}-{part.partition_id} {part.error.name if part.error else state}"

    def request(self, command: Command, recovering: str) -> Any:
        flag = {"leader_recovery_state": int(recovering)} if recovering else {}
        made = []
        for word in command.words():
            where, _, isr = word.partition("=")
            where, _, topic_id = where.partition("@")
            changed = flag | ({"topic_id": topic_id} if topic_id else {})
            made.append(self.world.proposal(place(where), numbers(isr), **changed))
        return replace(made[0], partitions=tuple(item.partitions[0] for item in made))

    # -- administrators ------------------------------------------------------------------------------------------------

    def do_create(self, command: Command) -> Iterator[str]:
        """`create t 0=1,2,3 1=2,3,1 id=T2 min.insync.replicas=3`."""
        name, topic_id = command.next(), command.get("id")
        assignment = {int(index): numbers(replicas) for index, replicas in command.named(str.isdigit).items()}
        topic_id = topic_id or name.upper()
        yield from self.ask(create_topic(name, topic_id, assignment, command.named()))

    def do_delete(self, command: Command) -> Iterator[str]:
        yield from self.ask(delete_topic(command.next()))

    def do_ask(self, command: Command) -> Iterator[str]:
        """`ask add t-2=4,1`, `ask reassign t-0=1,4 u-0=4`, `ask remove t-1`: requests under `/admin`."""
        root = {"add": paths.ADDED, "remove": paths.REMOVED, "reassign": paths.REASSIGNED}[command.next()]
        for word in command.words():
            where, _, replicas = word.partition("=")
            yield from self.ask(request(root, place(where), numbers(replicas)))

    def do_cancel(self, command: Command) -> Iterator[str]:
        yield from self.ask(cancel_reassignment(place(command.next())))

    def do_elect(self, command: Command) -> Iterator[str]:
        """`elect preferred t-0 t-1`, `elect unclean` for all partitions."""
        kind = ElectionType[command.next().upper()]
        keys = [place(word) for word in command.words()] or None
        found = yield from self.carry_out(elect_leaders(self.controller, kind, keys))
        if found is not None:
            yield ", ".join(f"{key.topic}-{key.partition} {error.name}" for key, error in found.items())

    def ask(self, procedure: Procedure[ErrorCode]) -> Iterator[str]:
        error = self.world.admin(procedure)
        if error:
            yield error.name

    # -- the controller ------------------------------------------------------------------------------------------------

    @property
    def controller(self) -> Any:
        assert self.world.controller is not None
        return self.world.controller

    def do_before(self, command: Command) -> None:
        """`before t-0 delete t , create t 0=4,3`: carried out just before the next transaction that changes this node;
        `always`: before each; `before none` ends that. `repeat` carries the transaction out, as if its response were
        lost and the runner repeated it.
        """
        self.world.before_write = lambda operations: None
        if command.flag("none"):
            return
        path, is_always = path_of(command.next()), command.flag("always")
        texts = " ".join(command.words()).split(" , ")

        def meanwhile(operations: tuple[WriteOperation, ...]) -> None:
            if not changes(operations, path):
                return
            if not is_always:
                self.world.before_write = lambda operations: None
            for text in texts:
                if text == "repeat":
                    self.world.transact(ADMIN, operations)
                else:
                    assert Script.run(self, text) == [], text

        self.world.before_write = meanwhile

    def do_touch(self, command: Command) -> None:
        """`touch t-0`: its data are written as they are, which counts as a change."""
        path = path_of(command.next())
        node = self.world.tree.find(path)
        assert node is not None
        self.world.transact(ADMIN, (SetData(path=path, data=node.data),))

    def do_assign(self, command: Command) -> None:
        """`assign t 7=4`: somebody else writes more partitions into an assignment."""
        name = command.next()
        node = self.world.topic(name)
        more = {int(index): numbers(replicas) for index, replicas in command.named().items()}
        changed = node.model_copy(update={"partitions": {**node.partitions, **more}})
        self.world.transact(ADMIN, (SetData(path=paths.topic(name), data=changed.encode()),))

    def do_initialise(self, command: Command) -> None:
        """`initialise t-0 4,3`: somebody else writes a first state, as controller 8 would."""
        key, isr = place(command.next()), numbers(command.next())
        first = LeaderAndIsr(leader=isr[0], leader_epoch=0, isr=isr, controller=8, controller_epoch=1)
        state = Create(path=paths.leader_and_isr(key), data=first.encode())
        self.world.transact(ADMIN, (Create(path=paths.partition(key)), state))

    def do_raise(self, command: Command) -> None:
        """`raise partitions-add`: an event, as if a watch or a timer had fired."""
        self.world.events.append(Event(command.next()))

    def do_handle(self, command: Command) -> None:
        """All events; `once`: only the first one."""
        if command.flag("once"):
            self.world.run(procedures(self.controller)[self.world.events.pop(0)]())
        else:
            self.world.handle_events()

    def do_reads(self, command: Command) -> Iterator[str]:
        """`reads COMMAND`: what the controller reads is printed, too."""
        self.is_reading = True
        yield from self.run(" ".join(command.words()))
        self.is_reading = False

    def do_settle(self, command: Command) -> None:
        """All events; live replicas join the ISRs of their leaders, until nothing changes. Prints no steps."""
        self.world.settle()
        self.world.steps.clear()

    def carry_out(self, procedure: Procedure[Any]) -> Any:
        """Yields the steps of a procedure; its result, or None after its refusal, which is printed."""
        try:
            result = self.world.run(procedure)
        except Refused as refused:
            yield f"refused {refused.error.name}: {refused}"
            return None
        yield from self.steps_and_alerts()
        return result

    # -- what has become of it -----------------------------------------------------------------------------------------

    def do_show(self, command: Command) -> Iterator[str]:
        """Partitions (`t-0`), topics (`t`), nodes (`/path`), `broker 1`, `requests`, `waiting`."""
        words = command.words()
        if words[0] == "broker":
            for broker in map(int, words[1:]):
                found = self.world.brokers[broker]
                held = (f"{topic_id}-{index} {led_words(part)}" for (topic_id, index), part in found.replicas.items())
                deleted = listed(f"{topic_id}-{index}" for topic_id, index in found.deleted)
                yield f"broker {broker} holds {' | '.join(held) or '-'}; deleted {deleted}"
        elif words == ["requests"]:
            yield listed(f"{root}/{topic}" for root in paths.REQUESTS for topic in self.world.tree.children(root))
        elif words == ["events"]:
            yield f"events {listed(self.world.events)}; timers {listed(self.world.timers)}"
        elif words == ["waiting"]:
            moves = [
                f"{key.topic}-{key.partition} {'in progress' if move.has_begun else 'init'}"
                for key, move in self.controller.moves.items()
            ]
            unsettled = [f"{key.topic}-{key.partition}" for key in sorted(self.controller.unsettled)]
            damaged = sorted(map(str, self.controller.damaged))
            yield f"moves {listed(moves)}; unsettled {listed(unsettled)}; damaged {listed(damaged)}"
        else:
            for word in words:
                yield self.shown(word)

    def shown(self, word: str) -> str:
        node = self.world.tree.find(path_of(word))
        if node is None:
            return f"{word} is not there"
        if word.startswith("/"):
            below = f", children {listed(self.world.tree.children(word))}"
            return f"{word} is {node.data.decode() or 'empty'}{below}"
        return f"{word} {data_words(path_of(word), node.data)} version={node.version}"

    def do_forget_damage(self, command: Command) -> None:
        """The controller will report damaged nodes again."""
        self.controller.damaged.clear()

    def do_known(self, command: Command) -> Iterator[str]:
        """What the controller has in memory: `known t-0`; `known` the topics."""
        words = command.words()
        if not words:
            yield f"topics {listed(self.controller.topics)}"
        for word in words:
            yield f"{word} {state_words(self.controller.states[place(word)])}"

    def do_follow(self, command: Command) -> None:
        """Every live broker holds what the store assigns to it, under the leader epoch of the store."""
        self.world.assert_brokers_follow()

    # -- steps in words ------------------------------------------------------------------------------------------------

    def said(self, step: Any) -> Iterator[str]:
        match step:
            case Reads(operations) if self.is_reading:
                yield f"read {listed(dict.fromkeys(node_name(operation.path) for operation in operations))}"
            case Writes(units):
                yield " | ".join(f"{self.outcome(unit)} {unit_words(unit)}" for unit in units)
            case Commands(commands):
                by_content: dict[str, list[int]] = {}
                for command in commands:
                    by_content.setdefault(command_words(command), []).append(command.broker)
                yield from (f"to {listed(brokers)}: {words}" for words, brokers in by_content.items())
            case Later(event, after_ms):
                yield f"later {event}{f' in {after_ms} ms' if after_ms else ''}"
            case Pause(duration_ms):
                yield f"pause {duration_ms} ms"

    def outcome(self, unit: tuple[WriteOperation, ...]) -> str:
        return "refused" if any(unit is other for other in self.world.refused) else "write"


def state_words(stored: Stored) -> str:
    return f"{leader_words(stored.state)} version={stored.version}"


def leader_words(state: LeaderAndIsr) -> str:
    flag = " unclean" if state.is_unclean_leader else ""
    return f"leader={state.leader}/{state.leader_epoch} isr={listed(state.isr)}{flag}"


def led_words(part: Any) -> str:
    """The state of a partition as a command has it; the replicas, where the ISR has not all of them."""
    replicas = "" if set(part.replicas) == set(part.isr) else f" replicas={listed(part.replicas)}"
    return f"{leader_words(part)} version={part.version}{replicas}"


def data_words(path: str, data: bytes) -> str:
    if data in (REMOVED, b"?"):
        return "removed" if data == REMOVED else "damaged"
    if path.endswith(paths.LEADER_AND_ISR):
        return leader_words(LeaderAndIsr.decode(path, data))
    root, names = paths.locate(path)
    if root == paths.TOPICS and len(names) == 1:
        partitions = TopicNode.decode(path, data).partitions
        return " ".join(f"{index}={listed(replicas)}" for index, replicas in partitions.items())
    return data.decode()


def unit_words(unit: tuple[WriteOperation, ...]) -> str:
    """The operations of a transaction; `check T`: that the topic with this id exists."""
    words = []
    for operation in unit:
        if isinstance(operation, Check):
            words.append(f"check {operation.path.rpartition('/')[2]}")
        elif isinstance(operation, Delete):
            words.append(f"delete {node_name(operation.path)}")
        else:
            words.append(f"{node_name(operation.path)} {data_words(operation.path, operation.data)}".strip())
    return ", ".join(words)


def command_words(command: BrokerCommand) -> str:
    parts = ["init"] * command.is_init
    parts += [f"{part.topic}-{part.partition_id} {led_words(part)}" for part in command.leader_and_isr]
    parts += [f"stop {part.topic}-{part.partition_id}/{part.leader_epoch}" for part in command.stop_replica]
    return ", ".join(parts) or "nothing"
