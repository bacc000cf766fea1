"""`isray node`: the nodes of a cluster of `isray up`, and failures made by hand: kill, stop, start, pause, resume, and
replace the disk of one node.

The supervisor of the cluster carries out each command (`experiments/engines/ray/node_commands.py`), so they work for
clusters of this user on this machine. A node is named as `isray status` does, or by its id: `broker-0` or `0`,
`controller-1000` or `1000`, `urm` or `2000`.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from experiments.cli.exit_codes import ExitCode
from experiments.cli.help import App
from experiments.cli.output import Json, option, print_json, print_result, wide_console
from experiments.engines.ray.connection import own_cluster
from experiments.engines.ray.node_commands import NodeAction, NodeAnswer, NodeCommand, NodeRow, ask
from experiments.support.errors import InputError
from protocol.config import INT_MAX
from protocol.ids import node_name

LOSSES = "none, unflushed, all, or a number of records"
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A name or id: broker-0 or 0, controller-1000 or 1000.")]
ClusterName = Annotated[str | None, option("NAME", "Your cluster of this name on this machine.", "--name")]

app = App("Nodes of a cluster of isray up: end, restart and pause them.", no_args_is_help=True)


@app.register("list", "isray node list")
def list_nodes(name: ClusterName = None, as_json: Json = False) -> None:
    """The nodes with their state, process and directory."""
    rows = _ask(name, NodeCommand(action=NodeAction.LIST), as_json).rows
    print_result(as_json, [row.model_dump() for row in rows], _print_rows, rows)


@app.register("kill", "isray node kill broker-0 --lose unflushed")
def kill(
    node: NodeName,
    lose: Annotated[str, option("LOSS", f"What its disk loses: {LOSSES}, as far as unflushed.")] = "none",
    name: ClusterName = None,
    as_json: Json = False,
) -> None:
    """End a node with SIGKILL, as a crash."""
    kind, count = _loss(lose)
    _change(NodeAction.KILL, node, name, as_json, kind, count)


@app.register("stop", "isray node stop broker-0")
def stop(node: NodeName, name: ClusterName = None, as_json: Json = False) -> None:
    """Shut a broker or controller down in good order, and wait until it has ended."""
    if _named(node) == "urm":
        raise InputError("NODE", "", node, "a broker or a controller; the recovery manager has no shutdown, only kill")
    _change(NodeAction.STOP, node, name, as_json)


@app.register("start", "isray node start broker-0")
def start(node: NodeName, name: ClusterName = None, as_json: Json = False) -> None:
    """Start a node that has ended, on what its disk holds."""
    _change(NodeAction.START, node, name, as_json)


@app.register("pause", "isray node pause broker-0")
def pause(node: NodeName, name: ClusterName = None, as_json: Json = False) -> None:
    """Stop a node's process with SIGSTOP, as a long garbage collection."""
    _change(NodeAction.PAUSE, node, name, as_json)


@app.register("resume", "isray node resume broker-0")
def resume(node: NodeName, name: ClusterName = None, as_json: Json = False) -> None:
    """Let a paused node go on."""
    _change(NodeAction.RESUME, node, name, as_json)


@app.register("replace-disk", "isray node replace-disk broker-0")
def replace_disk(node: NodeName, name: ClusterName = None, as_json: Json = False) -> None:
    """Have a node that has ended start with an empty disk."""
    _change(NodeAction.REPLACE_DISK, node, name, as_json)


def _named(node: str) -> str:
    return node_name(int(node)) if node.isdecimal() and int(node) <= INT_MAX else node


def _loss(text: str) -> tuple[str, int]:
    """(kind, count) of a loss as `apply_loss` takes them."""
    if text.isdecimal() and int(text) <= INT_MAX:
        return "records", int(text)
    if text not in ("none", "unflushed", "all"):
        raise InputError("--lose", "", text, LOSSES)
    return text, 0


_DONE = {
    NodeAction.KILL: "killed",
    NodeAction.STOP: "stopped",
    NodeAction.PAUSE: "paused",
    NodeAction.RESUME: "resumed",
    NodeAction.REPLACE_DISK: "will start with an empty disk",
}


def _change(
    action: NodeAction, node: str, name: str | None, as_json: bool, loss_kind: str = "none", loss_count: int = 0
) -> None:
    """Has the supervisor carry out an action on one node, and prints what has come of it."""
    command = NodeCommand(action=action, node=_named(node), loss_kind=loss_kind, loss_count=loss_count)
    [row] = _ask(name, command, as_json).rows
    done = f"started, process {row.pid}" if action is NodeAction.START else _DONE[action]
    print_result(as_json, row.model_dump(), typer.echo, f"{row.node} {done}")


def _ask(name: str | None, command: NodeCommand, as_json: bool) -> NodeAnswer:
    """The answer of the cluster's supervisor. Exit code 1 where it does not answer or has failed; InputError where the
    command is not possible.
    """
    state = own_cluster(name)
    try:
        answer = ask(state, command)
    except OSError as error:
        answer = NodeAnswer(failure=f"the supervisor of {state.options.name}, process {state.pid}: {error}")
    if answer.allowed:
        raise InputError("NODE", "", answer.found, answer.allowed)
    if answer.failure:
        typer.echo(f"isray: {command.node or 'node list'}: {answer.failure}", err=True)
        if as_json:
            print_json({"error": answer.failure})
        raise typer.Exit(ExitCode.FAILURE)
    return answer


def _print_rows(rows: tuple[NodeRow, ...]) -> None:
    table = Table("node", "state", "process", "directory", box=None)
    for row in rows:
        table.add_row(row.node, row.state, "" if row.pid is None else str(row.pid), row.directory)
    wide_console().print(table)
