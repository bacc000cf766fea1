"""Connects a command to a running cluster: finds the cluster, and opens a channel to it through Ray.

A command joins the cluster's Ray as a driver, looks up the actor of the cluster's client by name, and has it make one
request at a time (`actors.admin_relay` keeps the requests of several commands apart). The bootstrap address is that of
the Ray head. The namespace of the actors is in the state file of the user who started the cluster; without such a file,
the only cluster on that Ray is found by its actors.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from experiments.engines.admin_client import AdminError
from experiments.engines.ray.cluster_state import ClusterState, read_state, states
from experiments.engines.ray.session import Handle, stay_on_loopback
from experiments.support.errors import InputError, MissingInput, NoClusterRuns
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import FIRST_CLIENT, node_name
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.messages.codec import decode, encode
from protocol.messages.commands import (
    AdminOutcome,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
)

CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 120.0
"""Longer than any client waits for its cluster (`delivery.timeout.ms` is 30 s unless it is set otherwise)."""
CLIENT = node_name(FIRST_CLIENT)
Outcome = TypeVar("Outcome", bound=Message)


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster to connect to: `host:port` of its Ray head, and the Ray namespace of its actors (None: not known).
    `loopback`: the Ray is a private one of this machine."""

    address: str
    namespace: str | None = None
    loopback: bool = False


class RayAdminChannel:
    """`experiments.engines.admin_client.AdminChannel` through the cluster's client actor."""

    def __init__(self, client: Handle) -> None:
        self._client = client

    def call(self, request: AdminRequest) -> AdminResponse:
        outcome = self._command(request, AdminOutcome)
        if outcome.response is None:
            raise AdminError(outcome.error, outcome.message)
        return outcome.response

    def send(self, records: SendRecords) -> SendOutcome:
        return self._command(records, SendOutcome)

    def produce(self, command: ProduceCommand) -> ProduceOutcome:
        return self._command(command, ProduceOutcome)

    def consume(self, command: ConsumeCommand) -> ConsumeOutcome:
        return self._command(command, ConsumeOutcome)

    def _command(self, question: Message, answer: type[Outcome]) -> Outcome:
        """The outcome that the cluster's client reports."""
        outcome = decode(self._ask(self._client.request.remote(encode(question))))
        if not isinstance(outcome, answer):
            raise ProtocolInvariantError(f"the client answers {type(question).__name__} with {type(outcome).__name__}")
        return outcome

    def _ask(self, call: Handle) -> Any:
        """The result of a call to the cluster's client. AdminError where there is none."""
        import ray

        try:
            return ray.get(call, timeout=ANSWER_WITHIN_S)
        except ray.exceptions.RayActorError as error:
            raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster's {CLIENT} is gone") from error
        except ray.exceptions.GetTimeoutError as error:
            text = f"the cluster's {CLIENT} does not answer within {ANSWER_WITHIN_S:.0f} s"
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, text) from error


def find_cluster(bootstrap: str | None, name: str | None) -> list[ClusterAddress]:
    """The addresses to try, in this order, for the cluster of this `name`, else for the bootstrap addresses
    (`host:port,host:port`), else for the only cluster of this user on this machine.

    InputError where no such cluster runs, and where several run and neither option is given.
    """
    if name is not None or bootstrap is None:
        return [_address_of(own_cluster(name, "; or --bootstrap-server"))]
    addresses = [address.strip() for address in bootstrap.split(",")]
    for address in addresses:
        _split_address(address)
    here = _known_here()
    return [_by_address(address, here) for address in addresses]


def own_cluster(name: str | None, otherwise: str = "") -> ClusterState:
    """The state of the running cluster of this user and name, or of the only one without a name; InputError where there
    is none, and where several run and no name is given (`otherwise` ends its line).
    """
    if name is not None:
        return running_cluster(name)
    here = _known_here()
    if not here:
        raise NoClusterRuns
    if len(here) > 1:
        names = ", ".join(state.options.name for state in here)
        raise MissingInput("--name", f"one of the clusters that run here: {names}{otherwise}")
    return here[0]


def _known_here() -> list[ClusterState]:
    """The running clusters of this user whose address is known."""
    return [state for state in states() if state.is_running and state.address is not None]


def running_cluster(name: str) -> ClusterState:
    """The state of the running cluster of this name and user; InputError where there is none."""
    state = read_state(name)
    if state is None or not state.is_running:
        here = ", ".join(known.options.name for known in states() if known.is_running)
        raise InputError("--name", "", f"{name}, which does not run", here) if here else NoClusterRuns
    return state


def _address_of(state: ClusterState) -> ClusterAddress:
    if state.address is None:
        raise InputError("--name", "", f"{state.options.name}, which is still starting", "a cluster that is ready")
    return ClusterAddress(state.address, state.namespace, state.is_private)


def _by_address(address: str, here: list[ClusterState]) -> ClusterAddress:
    matching = [state for state in here if state.address == address]
    if len(matching) == 1:
        return _address_of(matching[0])
    return ClusterAddress(address, None, any(state.is_private for state in matching))


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InputError("--bootstrap-server", "", address, "host:port of the Ray head, or several, by commas")
    return host, int(port)


@contextmanager
def connection(candidates: list[ClusterAddress]) -> Iterator[tuple[RayAdminChannel, set[str]]]:
    """Connects to the first candidate that accepts connections; yields a channel and the names of the running nodes.

    InputError where no candidate does, or where its Ray runs no cluster, or several and the namespace is not known.
    """
    target = _first_that_listens(candidates)
    if target.loopback:
        stay_on_loopback()
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    try:
        ray.init(target.address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError("--bootstrap-server", "", target.address, f"a Ray that answers ({error})") from error
    try:
        actors = [(found["namespace"], found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)]
        namespace = target.namespace or _only_cluster(target.address, actors)
        yield _open_channel(namespace), {name for home, name in actors if home == namespace}
    finally:
        ray.shutdown()


def _open_channel(namespace: str) -> RayAdminChannel:
    import ray

    try:
        return RayAdminChannel(ray.get_actor(CLIENT, namespace))
    except ValueError as error:
        raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster's {CLIENT} does not run") from error


def _only_cluster(address: str, actors: list[tuple[str, str]]) -> str:
    """The namespace of the only cluster whose client is among the actors (namespace, name); InputError otherwise."""
    found = sorted(home for home, name in actors if name == CLIENT)
    if len(found) != 1:
        clusters = f"{address}, which runs {', '.join(found) or 'no cluster'}"
        raise InputError("--bootstrap-server", "", clusters, "a Ray that runs one cluster (of several: --name)")
    return found[0]


def _first_that_listens(candidates: list[ClusterAddress]) -> ClusterAddress:
    for target in candidates:
        try:
            socket.create_connection(_split_address(target.address), timeout=CONNECT_WITHIN_S).close()
            return target
        except OSError as error:
            refusal = error
    addresses = ", ".join(target.address for target in candidates)
    raise InputError("--bootstrap-server", "", addresses, f"host:port of a running Ray head ({refusal})")
