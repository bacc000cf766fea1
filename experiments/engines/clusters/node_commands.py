"""The commands of `isray node` and `isray net`, which the supervisor of a cluster carries out, and the socket by which
they reach it.

The supervisor alone starts and ends nodes, so a command goes to it: one line of JSON each way over a Unix socket beside
the cluster's state file, which only the user can open. Those from other machines arrive there too
(`remote_commands.py`). The supervisor serves one command at a time, between two polls of its nodes. Every command is
answered at once, so that one node which takes long delays no command about another. A caller waits for a start or a
stop by asking again (`ask_until`).

So two operators cannot disturb each other: of two commands about one node the second meets the state that the first has
left, and is refused as a whole where that does not allow it.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from typing import get_args

from pydantic import BaseModel

from actors.storage import DamageKind
from experiments.engines.clusters.cluster_state import ClusterState, socket_path
from protocol.ids import NodeId

ANSWER_WITHIN_S = 120.0
_READ_WITHIN_S = 5.0
_ASK_AGAIN_S = 0.2


class NodeAction(StrEnum):
    """What `isray node` asks for: `kill` is SIGKILL, and a loss at the next start; `stop` begins a controlled shutdown;
    both withdraw a start. `start` begins a new process on what the disk holds, as soon as a Ray node may take it.
    `pause` and `resume` are SIGSTOP and SIGCONT; after `replace-disk` the next start finds an empty disk, and `lose` is
    a loss at the next start. `fill-disk` leaves room for `room_bytes` in the node's logs, until `free-disk` or its end;
    `corrupt-tail` is SIGKILL and then damage to the ends of the logs.

    `links` lists the links that are not whole; `cut`, `heal` and `slow` change the link from `node` to `peer`, or that
    and the opposite one; `heal` without nodes heals all. `describe` is for clusters of Apache Kafka, whose supervisor
    knows what the controllers have decided; nodes on Ray answer themselves.
    """

    LIST = "list"
    KILL = "kill"
    STOP = "stop"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    REPLACE_DISK = "replace-disk"
    LOSE = "lose"
    FILL_DISK = "fill-disk"
    FREE_DISK = "free-disk"
    CORRUPT_TAIL = "corrupt-tail"
    LINKS = "links"
    CUT = "cut"
    HEAL = "heal"
    SLOW = "slow"
    DESCRIBE = "describe"


LINK_ACTIONS = frozenset({NodeAction.LINKS, NodeAction.CUT, NodeAction.HEAL, NodeAction.SLOW})
DISK_ACTIONS = frozenset(
    {NodeAction.REPLACE_DISK, NodeAction.LOSE, NodeAction.FILL_DISK, NodeAction.FREE_DISK, NodeAction.CORRUPT_TAIL}
)
DAMAGES = get_args(DamageKind)
Link = tuple[NodeId, NodeId]
"""From one node to another."""


class NodeState(StrEnum):
    """Whether a node has a process, whether that is paused, and whether one is to start."""

    RUNNING = "running"
    PAUSED = "paused"
    STARTING = "starting"
    WAITING = "waiting for a Ray node"
    ENDED = "ended"


ALLOWED: Mapping[NodeAction, tuple[NodeState, ...]] = {
    NodeAction.KILL: (NodeState.RUNNING, NodeState.PAUSED, NodeState.STARTING, NodeState.WAITING),
    NodeAction.STOP: (NodeState.RUNNING, NodeState.STARTING, NodeState.WAITING),
    NodeAction.START: (NodeState.ENDED,),
    NodeAction.PAUSE: (NodeState.RUNNING,),
    NodeAction.RESUME: (NodeState.PAUSED,),
    NodeAction.REPLACE_DISK: (NodeState.ENDED,),
    NodeAction.LOSE: (NodeState.ENDED,),
    NodeAction.FILL_DISK: (NodeState.RUNNING,),
    NodeAction.FREE_DISK: (NodeState.RUNNING,),
    NodeAction.CORRUPT_TAIL: (NodeState.RUNNING, NodeState.PAUSED, NodeState.ENDED),
}
"""The states of the node in which an action is possible."""


class NodeCommand(BaseModel, frozen=True, extra="forbid"):
    """An action on a node. `loss_kind` and `loss_count` are what `kill` and `lose` remove (`storage.apply_loss`),
    `room_bytes` is what `fill-disk` leaves, `damage` and `seed` are those of `corrupt-tail` (`storage.damage_tails`).
    `peer` is the other end of a link, whose opposite direction is changed, too, with `both_ways`; `slow` delays by
    `delay_ms`.
    """

    action: NodeAction
    node: str | None = None
    loss_kind: str = "none"
    loss_count: int = 0
    room_bytes: int = 0
    damage: DamageKind = "torn"
    seed: str = ""
    peer: str | None = None
    both_ways: bool = False
    delay_ms: int = 0


class NodeRow(BaseModel, frozen=True, extra="forbid"):
    """A node of the cluster as it is now. `pid`, `host` and `ray_node` are of its process, None where it has none;
    `directory` is on its machine. `reason` says what it waits for or why it has ended, as far as that is known.
    """

    node: str
    state: NodeState
    pid: int | None = None
    directory: str
    host: str | None = None
    ray_node: str | None = None
    reason: str = ""


class LinkRow(BaseModel, frozen=True, extra="forbid"):
    """A link that is not whole; `delay_ms` is None where it is cut."""

    source: str
    target: str
    delay_ms: int | None = None

    @property
    def words(self) -> str:
        state = "cut" if self.delay_ms is None else f"slow by {self.delay_ms} ms"
        return f"{self.source} to {self.target} is {state}"


class BrokerReport(BaseModel, frozen=True, extra="forbid"):
    """A registered broker, and the numbers of partitions that it leads and has a replica of."""

    broker: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool
    rack: str | None = None
    leads: int = 0
    replicas: int = 0


class ClusterReport(BaseModel, frozen=True, extra="forbid"):
    """What the controllers have decided, the role of each running one, and the active one (`NO_LEADER`: none)."""

    controller: int
    roles: dict[int, str]
    voters: tuple[int, ...]
    brokers: tuple[BrokerReport, ...]
    features: dict[str, int]


class NodeAnswer(BaseModel, frozen=True, extra="forbid"):
    """The nodes concerned; `found` and `allowed` say why a command was not possible, `failure` why it failed. `links`
    are all that are not whole, in the answer to an action on links; `damaged` is the number of damaged logs, `report`
    answers `describe`.
    """

    rows: tuple[NodeRow, ...] = ()
    links: tuple[LinkRow, ...] = ()
    damaged: int = 0
    report: ClusterReport | None = None
    found: str = ""
    allowed: str = ""
    failure: str = ""


def refusal(command: NodeCommand, names: Collection[str]) -> NodeAnswer | None:
    """Why an action on nodes or links is not possible whatever their state, None where it is: its nodes are not of the
    cluster, whose nodes are `names`.
    """
    wrong = [end for end in (command.node, command.peer) if end is not None and end not in names]
    if command.node is None and command.action not in LINK_ACTIONS:
        wrong = ["no node"]
    return NodeAnswer(found=wrong[0], allowed=", ".join(names)) if wrong else None


def state_refusal(command: NodeCommand, state: NodeState) -> NodeAnswer | None:
    """Why an action is not possible on its node in this state, None where it is."""
    allowed = ALLOWED[command.action]
    if state in allowed:
        return None
    return NodeAnswer(found=f"{command.node}, which is {state}", allowed=f"a node that is {' or '.join(allowed)}")


def links_of(command: NodeCommand, names: Mapping[str, NodeId], disturbed: Iterable[Link]) -> list[Link]:
    """The links that an action is about: one, that and the opposite one, or all `disturbed` ones."""
    if command.node is None or command.peer is None:
        return list(disturbed)
    link = names[command.node], names[command.peer]
    return [link, link[::-1]] if command.both_ways else [link]


def link_refusal(command: NodeCommand, present: Sequence[LinkRow | None]) -> NodeAnswer | None:
    """Why an action on links is not possible, None where it is. `present` are the links of the command as they are,
    None for a whole one.
    """
    if command.node is None or command.peer is None:
        return None
    name = f"{command.node} to {command.peer}"
    if command.node == command.peer:
        return NodeAnswer(found=name, allowed="two different nodes")
    is_cut = [row is not None and row.delay_ms is None for row in present]
    if command.action is NodeAction.HEAL and not any(present):
        return NodeAnswer(found=f"{name}, which is whole", allowed="a link that is cut or slow")
    if command.action is NodeAction.CUT and all(is_cut):
        return NodeAnswer(found=f"{name}, which is cut", allowed="a link that is not cut")
    if command.action is NodeAction.SLOW and any(is_cut):
        return NodeAnswer(found=f"{name}, which is cut", allowed="a link that is not cut")
    return None


Ask = Callable[[NodeCommand], NodeAnswer]
"""Has a supervisor carry out a command. SupervisorGoneError where it does not answer."""


class SupervisorGoneError(RuntimeError):
    """The supervisor does not answer; why, in one line."""


class NodeServer(UnixStreamServer):
    """The supervisor's end of the socket, at `path`; `answer` carries out a command."""

    def __init__(self, path: Path, answer: Callable[[NodeCommand], NodeAnswer]) -> None:
        self.answer = answer
        self._path = path
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ends the supervisor with the error of a command, unless the caller has gone, or has sent no command."""
        if not isinstance(sys.exception(), OSError | ValueError):
            raise

    def server_close(self) -> None:
        super().server_close()
        self._path.unlink(missing_ok=True)


class _Handler(StreamRequestHandler):
    timeout = _READ_WITHIN_S
    server: NodeServer

    def handle(self) -> None:
        command = NodeCommand.model_validate_json(self.rfile.readline())
        self.wfile.write(self.server.answer(command).model_dump_json().encode() + b"\n")


def ask(state: ClusterState, command: NodeCommand) -> NodeAnswer:
    """The supervisor's answer to a command. OSError where there is none within `ANSWER_WITHIN_S`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_WITHIN_S)
        connection.connect(str(socket_path(state.options.name)))
        connection.sendall(command.model_dump_json().encode() + b"\n")
        with connection.makefile("rb") as answer:
            line = answer.readline()
    if not line:
        raise ConnectionError("the supervisor has closed the connection")
    return NodeAnswer.model_validate_json(line)


def ask_until(ask: Ask, node: str, is_done: Callable[[NodeRow], bool], within_s: float) -> NodeRow:
    """The row of a node once `is_done` holds of it or the time is over. `ask` has the supervisor carry out commands."""
    deadline_s = time.monotonic() + within_s
    while True:
        row = next(row for row in ask(NodeCommand(action=NodeAction.LIST)).rows if row.node == node)
        if is_done(row) or time.monotonic() > deadline_s:
            return row
        time.sleep(_ASK_AGAIN_S)
