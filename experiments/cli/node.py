"""`isray node`: the nodes of a cluster of `isray up`, and failures of one node made by hand.

The supervisor of the cluster carries out each command (`experiments/engines/clusters/node_commands.py`). It is reached
over a socket, or with `--bootstrap-server` from any machine that reaches the cluster's Ray. A node is named as `isray
status` does, or by its id: `broker-0` or `0`, `controller-1000` or `1000`, `urm` or `2000`, `client-3000` or `3000`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from experiments.cli.help import App
from experiments.cli.output import Json, fail, option, print_result, table_of, wide_console
from experiments.engines.clusters.node_commands import (
    DAMAGES,
    Ask,
    NodeAction,
    NodeAnswer,
    NodeCommand,
    NodeRow,
    NodeState,
    SupervisorGoneError,
    ask_until,
)
from experiments.engines.ray.supervision import supervised
from experiments.support.errors import InputError
from protocol.config import INT_MAX
from protocol.ids import FIRST_CLIENT, RECOVERY_MANAGER, node_name

WITHIN_S = 60.0
LOSSES = "none, unflushed, all, or a number of records"
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A name or id: broker-0 or 0, controller-1000 or 1000.")]
ClusterName = Annotated[str | None, option("NAME", "Your cluster of this name on this machine.")]
RayAddress = Annotated[
    str | None,
    option("HOST:PORT", "The Ray head of a cluster on any machine.", "--bootstrap-server", "--address"),
]

app = App("Nodes of a cluster of isray up: end, restart and pause them.")


@app.register("list", "isray node list")
def list_nodes(name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """The nodes as they are now: state, process, its host and Ray node, directory."""
    with _supervisor(name, address, "node list", as_json) as ask:
        rows = _ask(ask, NodeCommand(action=NodeAction.LIST), as_json).rows
    print_result(as_json, [row.model_dump() for row in rows], _print_rows, rows)


@app.register("kill", "isray node kill broker-0 --lose unflushed")
def kill(
    node: NodeName,
    lose: Annotated[str, option("LOSS", f"What its disk loses: {LOSSES}, as far as unflushed.")] = "none",
    name: ClusterName = None,
    address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """End a node with SIGKILL, as a crash."""
    _change(NodeAction.KILL, node, (name, address), as_json, "killed", lose)


@app.register("stop", "isray node stop broker-0")
def stop(node: NodeName, name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """Shut a broker or controller down in good order, and wait until it has ended; or withdraw its start."""
    if named(node) in (node_name(RECOVERY_MANAGER), node_name(FIRST_CLIENT)):
        raise InputError("NODE", "", node, "a broker or a controller; clients and the recovery manager know only kill")
    with _supervisor(name, address, named(node), as_json) as ask:
        [row] = _ask(ask, NodeCommand(action=NodeAction.STOP, node=named(node)), as_json).rows
        row = _await(ask, row, lambda row: row.state is NodeState.ENDED)
    if row.state is not NodeState.ENDED:
        _fail(row.node, f"its shutdown is not done within {WITHIN_S:.0f} s; it goes on", as_json)
    _print_change(row, "stopped", as_json)


@app.register("start", "isray node start broker-0")
def start(node: NodeName, name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """Start a node that has ended, on what its disk holds. If its Ray node is lost, the start waits until another one
    is free; kill and stop withdraw it."""
    with _supervisor(name, address, named(node), as_json) as ask:
        [row] = _ask(ask, NodeCommand(action=NodeAction.START, node=named(node)), as_json).rows
        row = _await(ask, row, lambda row: row.state is not NodeState.STARTING)
    if row.state is NodeState.ENDED:
        _fail(row.node, row.reason, as_json)
    done = {NodeState.WAITING: f"is waiting for a Ray node: {row.reason}", NodeState.STARTING: "is still starting"}
    _print_change(row, done.get(row.state, f"started, process {row.pid}"), as_json)


@app.register("pause", "isray node pause broker-0")
def pause(node: NodeName, name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """Stop a node's process with SIGSTOP, as a long garbage collection."""
    _change(NodeAction.PAUSE, node, (name, address), as_json, "paused")


@app.register("resume", "isray node resume broker-0")
def resume(node: NodeName, name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """Let a paused node go on."""
    _change(NodeAction.RESUME, node, (name, address), as_json, "resumed")


@app.register("replace-disk", "isray node replace-disk broker-0")
def replace_disk(node: NodeName, name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """Have a node that has ended start with an empty disk."""
    _change(NodeAction.REPLACE_DISK, node, (name, address), as_json, "will start with an empty disk")


@app.register("fill-disk", "isray node fill-disk broker-0 --room 4096")
def fill_disk(
    node: NodeName,
    room: Annotated[int, option("BYTES", "By how much its logs may still grow.", min=0)] = 0,
    name: ClusterName = None,
    address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Leave no room on a node's disk: it exits at the write that fails. Undone by free-disk, or by the next start."""
    command = NodeCommand(action=NodeAction.FILL_DISK, node=named(node), room_bytes=room)
    _do(command, (name, address), as_json, "has a full disk")


@app.register("free-disk", "isray node free-disk broker-0")
def free_disk(node: NodeName, name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """Give a node that runs all the room on its disk again."""
    command = NodeCommand(action=NodeAction.FREE_DISK, node=named(node))
    _do(command, (name, address), as_json, "has room on its disk")


@app.register("corrupt-tail", "isray node corrupt-tail broker-0 --damage zeroed")
def corrupt_tail(
    node: NodeName,
    damage: Annotated[str, option("KIND", f"What happens to the unflushed ends: {', '.join(DAMAGES)}.")] = "torn",
    seed: Annotated[int, option("N", "Seed of what is damaged.", min=0)] = 0,
    name: ClusterName = None,
    address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """End a node with SIGKILL and damage the unflushed ends of its logs, which its next start drops. Not undone."""
    if damage not in DAMAGES:
        raise InputError("--damage", "", damage, ", ".join(DAMAGES))
    fields = {"action": NodeAction.CORRUPT_TAIL, "node": named(node), "damage": damage, "seed": str(seed)}
    answer = ask_supervisor(NodeCommand.model_validate(fields), (name, address), as_json)
    [row] = answer.rows
    text = f"{row.node} killed; logs with damaged ends: {answer.damaged}"
    print_result(as_json, row.model_dump() | {"damaged": answer.damaged}, typer.echo, text)


def named(node: str) -> str:
    return node_name(int(node)) if node.isdecimal() and int(node) <= INT_MAX else node


Where = tuple[str | None, str | None]
"""The name and the address of a cluster, as they were given."""


def _change(action: NodeAction, node: str, where: Where, as_json: bool, done: str, lose: str = "none") -> None:
    """Has the supervisor of a cluster carry out an action on one node, and prints what was `done`."""
    is_count = lose.isdecimal() and int(lose) <= INT_MAX
    if not is_count and lose not in ("none", "unflushed", "all"):
        raise InputError("--lose", "", lose, LOSSES)
    kind, count = ("records", int(lose)) if is_count else (lose, 0)
    _do(NodeCommand(action=action, node=named(node), loss_kind=kind, loss_count=count), where, as_json, done)


def _do(command: NodeCommand, where: Where, as_json: bool, done: str) -> None:
    [row] = ask_supervisor(command, where, as_json).rows
    _print_change(row, done, as_json)


def ask_supervisor(command: NodeCommand, where: Where, as_json: bool) -> NodeAnswer:
    """The answer of a cluster's supervisor to one command. Exit code 1 where it does not answer or has failed;
    InputError where the command is not possible.
    """
    with _supervisor(*where, command.node or command.action.value, as_json) as ask:
        return _ask(ask, command, as_json)


def _print_change(row: NodeRow, done: str, as_json: bool) -> None:
    print_result(as_json, row.model_dump(), typer.echo, f"{row.node} {done}")


def _await(ask: Ask, row: NodeRow, is_done: Callable[[NodeRow], bool]) -> NodeRow:
    """The node's row once `is_done` holds of it, or `WITHIN_S` have passed."""
    return row if is_done(row) else ask_until(ask, row.node, is_done, WITHIN_S)


@contextmanager
def _supervisor(name: str | None, address: str | None, what: str, as_json: bool) -> Iterator[Ask]:
    """The supervisor of the cluster of this name or at this address. Exit code 1 where it does not answer, with a line
    that begins with `what`.
    """
    if name is not None and address is not None:
        raise InputError("--name", "", "--name with --bootstrap-server", "one of the two")
    try:
        with supervised(name, address) as ask:
            yield ask
    except SupervisorGoneError as error:
        _fail(what, str(error), as_json)


def _ask(ask: Ask, command: NodeCommand, as_json: bool) -> NodeAnswer:
    """The supervisor's answer. Exit code 1 where it has failed; InputError where the command is not possible."""
    answer = ask(command)
    if answer.allowed:
        raise InputError("NODE", "", answer.found, answer.allowed)
    if answer.failure:
        _fail(command.node or "node list", answer.failure, as_json)
    return answer


def _fail(what: str, reason: str, as_json: bool) -> NoReturn:
    fail(f"isray: {what}: {reason}", {"error": reason} if as_json else None)


def _print_rows(rows: tuple[NodeRow, ...]) -> None:
    console = wide_console()
    columns = ("node", "state", "process", "host", "Ray node", "directory")
    texts = [
        (row.node, row.state, str(row.pid or ""), row.host or "", (row.ray_node or "")[:8], row.directory)
        for row in rows
    ]
    console.print(table_of(columns, texts))
    for row in rows:
        if row.reason:
            console.print(f"{row.node}: {row.reason}", highlight=False, markup=False, soft_wrap=True)
