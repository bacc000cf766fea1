"""How a command reaches the supervisor of a cluster: over its socket where the cluster is one of this user's on this
machine, else through Ray (`remote_commands.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from experiments.engines.admin_client import AdminError
from experiments.engines.clusters.cluster_state import ClusterState, states
from experiments.engines.clusters.node_commands import Ask, NodeAnswer, NodeCommand, SupervisorGoneError, ask
from experiments.engines.ray.connection import RayAdminChannel, connection, find_cluster, own_cluster


@contextmanager
def supervised(name: str | None, bootstrap: str | None) -> Iterator[Ask]:
    """Asks the supervisor of this user's cluster of that name, or of the cluster on the Ray at `bootstrap` (host:port),
    which may be on another machine. InputError where there is no such cluster, SupervisorGoneError where its Ray is
    lost.
    """
    here = own_cluster(name) if bootstrap is None else _here(bootstrap)
    if here is not None:
        yield by_socket(here)
        return
    try:
        with connection(find_cluster(bootstrap, None)) as connected:
            yield through_ray(connected.client)
    except AdminError as error:
        raise SupervisorGoneError(error.message) from error


def _here(bootstrap: str) -> ClusterState | None:
    """The only cluster of this user on the Ray at this address, None where there is none or there are several."""
    found = [state for state in states() if state.is_running and state.address == bootstrap]
    return found[0] if len(found) == 1 else None


def by_socket(state: ClusterState) -> Ask:
    def carry_out(command: NodeCommand) -> NodeAnswer:
        try:
            return ask(state, command)
        except OSError as error:
            supervisor = f"the supervisor of {state.options.name}, process {state.pid}"
            raise SupervisorGoneError(f"{supervisor}: {error}") from error

    return carry_out


def through_ray(channel: RayAdminChannel) -> Ask:
    def carry_out(command: NodeCommand) -> NodeAnswer:
        try:
            return NodeAnswer.model_validate_json(channel.ask_supervisor(command.model_dump_json()))
        except AdminError as error:
            raise SupervisorGoneError(error.message) from error

    return carry_out
