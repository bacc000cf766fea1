"""`isray console`: a running cluster that a local web page steers."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.cli.cluster_access import OwnCluster
from experiments.cli.output import fail, option


def console(
    name: OwnCluster = None,
    address: Annotated[str | None, option("HOST:PORT", "The Ray head of your cluster on this machine.")] = None,
    port: Annotated[int, option("N", "Port on 127.0.0.1; 0: any that is free.", min=0, max=65_535)] = 0,
) -> None:
    """Steer a running cluster of `isray up` by hand, on a local web page."""
    from experiments.engines.ray.connection import state_of
    from experiments.engines.ray.session import expect_kills, stay_on_loopback

    state = state_of(name, address)
    stay_on_loopback()
    expect_kills()
    from experiments.engines.ray.attached import ActionRefusedError, attached
    from experiments.play.live import LiveWorld
    from experiments.play.server import PlayServer

    try:
        with attached(state, keeps=lambda trace: False) as engine:
            server = PlayServer(LiveWorld(engine, state.options.name, _leave), port)
            typer.echo(f"Open {server.url} (Ctrl-C ends it; the cluster goes on)")
            server.serve()
    except ActionRefusedError as error:
        fail(f"isray: {error}")


def _leave(reason: str) -> None:
    """Leaves the Ray of a cluster that has ended: Ray would end this process after a minute without its control store.
    The page stays, with what was seen and done."""
    import ray

    typer.echo(f"isray: the cluster is gone: {reason}; the page keeps its last state (Ctrl-C ends it)", err=True)
    ray.shutdown()
