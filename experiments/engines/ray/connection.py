"""The way from a command to a running cluster: which one is meant, and a port to it through Ray.

A command joins the cluster's Ray as a driver, finds the actor of the cluster's client by its name, and has it make the
requests (`ask`), one at a time; what other commands ask there at the same time does not concern it. The bootstrap
address is that of the Ray head. A state file of this user says the rest (the namespace); where there is none, the one
cluster that runs on that Ray is found by its actors.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from experiments.engines.admin_client import AdminError
from experiments.engines.ray.cluster_state import ClusterState, read_state, states
from experiments.engines.ray.session import stay_on_loopback
from experiments.support.errors import InputError, MissingInput, NoClusterRuns
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import FIRST_CLIENT, node_name
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.codec import decode, encode
from protocol.messages.commands import AdminOutcome

CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 120.0
"""Longer than any client waits for its cluster (`delivery.timeout.ms` is 30 s unless it is set otherwise)."""
CLIENT = node_name(FIRST_CLIENT)


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster to connect to. `namespace` is None where only the Ray is known; `loopback`: the Ray is a private one
    of this machine."""

    address: str
    namespace: str | None = None
    loopback: bool = False


class RayAdminChannel:
    """`experiments.engines.admin_client.AdminChannel` through the cluster's client actor."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def call(self, request: AdminRequest) -> AdminResponse:
        import ray

        try:
            answer = ray.get(self._client.request.remote(encode(request)), timeout=ANSWER_WITHIN_S)
        except ray.exceptions.RayActorError as error:
            raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster's {CLIENT} is gone") from error
        except ray.exceptions.GetTimeoutError as error:
            text = f"the cluster's {CLIENT} does not answer within {ANSWER_WITHIN_S:.0f} s"
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, text) from error
        outcome = decode(answer)
        if not isinstance(outcome, AdminOutcome):
            raise ProtocolInvariantError(f"{type(outcome).__name__} answers a request")
        if outcome.response is None:
            raise AdminError(outcome.error, outcome.message)
        return outcome.response


def find(bootstrap: str | None, name: str | None) -> list[Where]:
    """Where the cluster that is meant may be, in the order in which to try: by its name, else by a list of bootstrap
    addresses (`host:port,host:port`), else the only one of this user that runs here.

    InputError where there is no such cluster, or where it does not say which one is meant.
    """
    if name is not None:
        return [_where(running(name))]
    here = [state for state in states() if state.is_running and state.address is not None]
    if bootstrap is None:
        if not here:
            raise NoClusterRuns
        if len(here) > 1:
            names = ", ".join(state.plan.name for state in here)
            raise MissingInput("--name", f"one of the clusters that run here: {names}; or --bootstrap-server")
        return [_where(here[0])]
    addresses = [address.strip() for address in bootstrap.split(",")]
    for address in addresses:
        _split(address)
    return [_by_address(address, here) for address in addresses]


def running(name: str) -> ClusterState:
    """The state of a cluster of this user that runs; InputError where there is none of that name."""
    state = read_state(name)
    if state is None or not state.is_running:
        found = f"{name}, which does not run"
        raise InputError("--name", "", found, "the name of a running cluster (isray up --name NAME)")
    return state


def _where(state: ClusterState) -> Where:
    if state.address is None:
        raise InputError("--name", "", f"{state.plan.name}, which is still starting", "a cluster that is ready")
    return Where(state.address, state.namespace, state.is_private)


def _by_address(address: str, here: list[ClusterState]) -> Where:
    on_it = [state for state in here if state.address == address]
    if len(on_it) == 1:
        return _where(on_it[0])
    return Where(address, None, any(state.is_private for state in on_it))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InputError("--bootstrap-server", "", address, "host:port of the Ray head, or several, by commas")
    return host, int(port)


@contextmanager
def connection(candidates: list[Where]) -> Iterator[tuple[RayAdminChannel, set[str]]]:
    """A port to the first of the candidates that is there, and the names of the nodes that run.

    InputError where none of them is there, or where a Ray runs no cluster, or several.
    """
    where = _first_that_listens(candidates)
    if where.loopback:
        stay_on_loopback()
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    try:
        ray.init(where.address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError("--bootstrap-server", "", where.address, f"a Ray that answers ({error})") from error
    try:
        actors = [(found["namespace"], found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)]
        namespace = where.namespace or _only_cluster(where.address, actors)
        yield _port(namespace), {name for home, name in actors if home == namespace}
    finally:
        ray.shutdown()


def _port(namespace: str) -> RayAdminChannel:
    import ray

    try:
        return RayAdminChannel(ray.get_actor(CLIENT, namespace))
    except ValueError as error:
        raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster's {CLIENT} does not run") from error


def _only_cluster(address: str, actors: list[tuple[str, str]]) -> str:
    """The namespace of the one cluster whose client is among the actors (namespace and name)."""
    found = sorted(home for home, name in actors if name == CLIENT)
    if len(found) != 1:
        clusters = f"{address}, which runs {', '.join(found) or 'no cluster'}"
        raise InputError("--bootstrap-server", "", clusters, "a Ray that runs one cluster (of several: --name)")
    return found[0]


def _first_that_listens(candidates: list[Where]) -> Where:
    for where in candidates:
        try:
            socket.create_connection(_split(where.address), timeout=CONNECT_WITHIN_S).close()
            return where
        except OSError as error:
            refusal = error
    addresses = ", ".join(where.address for where in candidates)
    raise InputError("--bootstrap-server", "", addresses, f"host:port of a running Ray head ({refusal})")
