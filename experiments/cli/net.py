"""`isray net`: the links between the nodes of a cluster of `isray up`, cut and slowed by hand.

A link has a direction: from the node that sends to the one that receives. What is on its way when a link is cut gets
lost. A slow link delays each message. Clients are nodes, too (`client-3000`). As for `isray node`,
the supervisor of the cluster carries out each command.
"""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.cli.help import App
from experiments.cli.node import ClusterName, RayAddress, Where, ask_supervisor, named
from experiments.cli.output import Json, flag, option, print_result
from experiments.engines.clusters.node_commands import LinkRow, NodeAction, NodeCommand
from experiments.support.errors import InputError

MAX_DELAY_MS = 2_000
"""From `controller.quorum.fetch.timeout.ms` on a link that is so slow is as good as cut for the quorum."""
Source = Annotated[
    str, typer.Argument(metavar="A", help="The node that sends: broker-0 or 0, controller-1000 or 1000.")
]
Target = Annotated[str, typer.Argument(metavar="B", help="The node that receives.")]
OneWay = Annotated[bool, flag("--one-way", "Only what A sends to B. Otherwise both directions.")]

app = App("Links between the nodes of a cluster of isray up: cut, slow and heal them.")


@app.register("list", "isray net list")
def list_links(name: ClusterName = None, address: RayAddress = None, as_json: Json = False) -> None:
    """The links that are cut or slow."""
    _change(NodeCommand(action=NodeAction.LINKS), (name, address), as_json)


@app.register("cut", "isray net cut broker-0 broker-1 --one-way")
def cut(
    source: Source,
    target: Target,
    one_way: OneWay = False,
    name: ClusterName = None,
    address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Cut the links between two nodes."""
    _change(_on_link(NodeAction.CUT, source, target, one_way), (name, address), as_json)


@app.register("slow", "isray net slow broker-0 broker-1 --delay-ms 200")
def slow(
    source: Source,
    target: Target,
    delay_ms: Annotated[int, option("MS", "How much later a message arrives.", min=1, max=MAX_DELAY_MS)] = 100,
    one_way: OneWay = False,
    name: ClusterName = None,
    address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Delay what two nodes send to each other, until the links are cut or healed."""
    _change(_on_link(NodeAction.SLOW, source, target, one_way, delay_ms), (name, address), as_json)


@app.register("heal", "isray net heal broker-0 broker-1", "isray net heal --all")
def heal(
    source: Annotated[str | None, typer.Argument(metavar="A", help="The node that sends.")] = None,
    target: Annotated[str | None, typer.Argument(metavar="B", help="The node that receives.")] = None,
    all_links: Annotated[bool, flag("--all", "All links that are cut or slow, instead of A and B.")] = False,
    one_way: OneWay = False,
    name: ClusterName = None,
    address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Heal links that are cut or slow."""
    if all_links:
        if source is not None:
            raise InputError("--all", "", f"--all with {source}", "--all, or two nodes")
        _change(NodeCommand(action=NodeAction.HEAL), (name, address), as_json)
        return
    if source is None or target is None:
        raise InputError("A B", "", source or "no node", "two nodes, or --all")
    _change(_on_link(NodeAction.HEAL, source, target, one_way), (name, address), as_json)


def _on_link(action: NodeAction, source: str, target: str, one_way: bool, delay_ms: int = 0) -> NodeCommand:
    ends = {"node": named(source), "peer": named(target)}
    return NodeCommand(action=action, **ends, both_ways=not one_way, delay_ms=delay_ms)


def _change(command: NodeCommand, where: Where, as_json: bool) -> None:
    """Has the supervisor carry out a command, and prints the links that are not whole then."""
    links = ask_supervisor(command, where, as_json).links
    print_result(as_json, [link.model_dump() for link in links], _print_links, links)


def _print_links(links: tuple[LinkRow, ...]) -> None:
    for link in links:
        typer.echo(link.words)
    if not links:
        typer.echo("all links are whole")
