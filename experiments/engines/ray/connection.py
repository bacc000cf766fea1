"""Connects a command to a running cluster: finds the cluster, and opens a channel to it through Ray.

A command joins the cluster's Ray as a driver, looks up the actor of the cluster's client by name, and has it make one
request at a time. A client whose process or Ray node is lost starts again elsewhere (`supervisor.py`): a request waits
for it, is repeated if that does no harm, and has an unknown outcome otherwise.

The bootstrap address is that of the Ray head. The namespace of the actors is in the state file of the user who started
the cluster; without such a file, the only cluster on that Ray is found by its actors.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from experiments.engines.admin_client import AdminError
from experiments.engines.clusters.cluster_state import ClusterState, read_state, states
from experiments.engines.ray.session import (
    ControlStoreLostError,
    Handle,
    RayArguments,
    ask_control_store,
    named_job,
    ray_output_to_stderr,
    require_control_store,
    require_ray,
    stay_on_loopback,
)
from experiments.support.errors import InputError, MissingInput, NoClusterRuns
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import FIRST_CLIENT, Epoch, node_name
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
from protocol.messages.quorum import DescribeQuorumRequest

BOOTSTRAP = "--bootstrap-server"
CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 120.0
"""Longer than any client waits for its cluster (`delivery.timeout.ms` is 30 s unless it is set otherwise)."""
CLIENT_WITHIN_S = 60.0
"""How long a request waits for a client that starts again; Ray notices after up to 20 s that a machine is lost."""
PROBE_WITHIN_S = 5.0
_SLICE_S = 0.5
_RETRY_S = 0.2
CLIENT = node_name(FIRST_CLIENT)
_LOOPBACK = ("127.0.0.1", "localhost")
SUPERVISOR = "supervisor"
"""The name of the actor that takes commands for the supervisor (`remote_commands.py`)."""
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """`host:port` of a Ray head, the namespace of the actors, if known, and whether the Ray is a private one here."""

    address: str
    namespace: str | None = None
    loopback: bool = False


class _Gone(Exception):
    """The actor that was asked has ended, or its Ray node is lost."""


def _await(call: Handle, address: str, within_s: float) -> Any:
    """The result of a call to an actor. _Gone where the actor is lost, TimeoutError where it does not answer in time,
    AdminError where Ray's control store, at `address`, is lost meanwhile.
    """
    import ray

    deadline_s = time.monotonic() + within_s
    try:
        while not ray.wait([call], timeout=min(_SLICE_S, within_s))[0]:
            with _lost_control_store():
                require_control_store(address)
            if time.monotonic() > deadline_s:
                raise TimeoutError
        return ray.get(call)
    except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
        raise _Gone from error


@contextmanager
def _lost_control_store() -> Iterator[None]:
    """Reports the loss of the control store as an AdminError."""
    try:
        yield
    except ControlStoreLostError as error:
        raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error


class RayAdminChannel:
    """`AdminChannel` through the client in a Ray namespace; `address` is that of Ray's control store."""

    def __init__(self, namespace: str, address: str) -> None:
        self._namespace = namespace
        self._address = address
        self._client: Handle = None

    def _actor(self, name: str) -> Handle:
        """The actor of a node. ValueError where there is none, AdminError where Ray's control store is lost."""
        import ray

        with _lost_control_store():
            return ask_control_store(lambda: ray.get_actor(name, self._namespace), self._address)

    def call(self, request: AdminRequest) -> AdminResponse:
        if request.READ_ONLY:
            answer = self._repeat(request)
        else:
            answer = self._ask_once(request, "the request may have been carried out")
        outcome = _decoded(answer, AdminOutcome)
        if outcome.response is None:
            raise AdminError(outcome.error, outcome.message)
        return outcome.response

    def send(self, records: SendRecords) -> SendOutcome:
        return _decoded(self._ask_once(records, "records may have been written"), SendOutcome)

    def produce(self, command: ProduceCommand) -> ProduceOutcome:
        try:
            return _decoded(self._ask(command), ProduceOutcome)
        except _Gone:
            return ProduceOutcome(command_id=0, error=ErrorCode.BROKER_NOT_AVAILABLE, base_offset=-1, unknown=True)

    def consume(self, command: ConsumeCommand) -> ConsumeOutcome:
        return _decoded(self._repeat(command), ConsumeOutcome)

    def ask_supervisor(self, command: str) -> str:
        """The supervisor's answer to a command, both as JSON. AdminError where it has ended or does not answer."""
        try:
            return cast(str, _await(self._actor(SUPERVISOR).ask.remote(command), self._address, ANSWER_WITHIN_S))
        except (ValueError, _Gone) as error:
            raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, "the supervisor of the cluster has ended") from error
        except TimeoutError as error:
            text = f"the supervisor of the cluster does not answer within {ANSWER_WITHIN_S:.0f} s"
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, text) from error

    def require_reachable(self) -> None:
        with _lost_control_store():
            require_control_store(self._address)

    def _repeat(self, message: Message) -> bytes:
        """The answer to a message that may be sent again to another incarnation of the client."""
        while True:
            with suppress(_Gone):  # the next incarnation is found, or not in time
                return self._ask(message)

    def _ask_once(self, message: Message, done: str) -> bytes:
        """The answer to a message. AdminError where the client ends meanwhile; `done` is what may have happened."""
        try:
            return self._ask(message)
        except _Gone as error:
            text = f"{CLIENT} has ended before it answered; {done}"
            raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, text) from error

    def _ask(self, message: Message) -> bytes:
        """The client's answer. _Gone where the client ends meanwhile; AdminError where there is none in time."""
        if self._client is None:
            self._client = self._find_client()
        try:
            return cast(bytes, _await(self._client.request.remote(encode(message)), self._address, ANSWER_WITHIN_S))
        except _Gone:
            self._client = None
            raise
        except TimeoutError as error:
            text = f"{CLIENT} does not answer within {ANSWER_WITHIN_S:.0f} s"
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, text) from error

    def _find_client(self) -> Handle:
        """The client's actor, once it answers. AdminError where none does in time."""
        deadline_s = time.monotonic() + CLIENT_WITHIN_S
        while time.monotonic() < deadline_s:
            try:
                client = self._actor(CLIENT)
                _await(client.process.remote(), self._address, PROBE_WITHIN_S)
                return client
            except (ValueError, _Gone, TimeoutError):
                time.sleep(_RETRY_S)
        text = f"{CLIENT} does not run, and has not started again within {CLIENT_WITHIN_S:.0f} s"
        raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, text)


class NodesChannel(RayAdminChannel):
    """As `RayAdminChannel`, but requests that only read are made of the nodes `names` themselves, without the client.
    The node that has answered last is asked first, so a caller that has found the leader of the quorum reads from it.
    """

    def __init__(self, namespace: str, address: str, names: Sequence[str]) -> None:
        super().__init__(namespace, address)
        controllers = [name for name in names if name.startswith("controller-")]
        self._names = controllers + [name for name in names if name.startswith("broker-")]
        self._leaders = controllers or self._names

    def call(self, request: AdminRequest) -> AdminResponse:
        if request.READ_ONLY:
            return self._query(request, self._names)
        if isinstance(request, DescribeQuorumRequest):
            return self._query(request, self._leaders)
        return super().call(request)

    def broker_epoch(self, name: str) -> Epoch | None:
        """The epoch in which the process of a broker is registered, NO_EPOCH before; None where it does not answer."""
        try:
            return cast(Epoch, _await(self._actor(name).broker_epoch.remote(), self._address, PROBE_WITHIN_S))
        except (ValueError, _Gone, TimeoutError):
            return None

    def _query(self, request: AdminRequest, names: Sequence[str]) -> AdminResponse:
        """The first answer other than NOT_CONTROLLER; AdminError where there is none."""
        error = AdminError(ErrorCode.REQUEST_TIMED_OUT, "no node answers")
        for name in names:
            try:
                call = self._actor(name).request.remote(encode(request))
                response = _decoded(_await(call, self._address, PROBE_WITHIN_S), AdminResponse, name)
            except (ValueError, _Gone, TimeoutError):
                continue
            if response.error is not ErrorCode.NOT_CONTROLLER:
                self._names = [name, *(other for other in self._names if other != name)]
                return response
            error = AdminError(response.error, "no controller is active")
        raise error


def _decoded(encoded: bytes, kind: type[Answer], node: str = "the client") -> Answer:
    """The answer of a node."""
    answer = decode(encoded)
    if not isinstance(answer, kind):
        raise ProtocolInvariantError(f"{node} answers with {type(answer).__name__} instead of {kind.__name__}")
    return answer


def find_cluster(bootstrap: str | None, name: str | None) -> list[ClusterAddress]:
    """The addresses to try, in this order, for the cluster of this `name`, else for the bootstrap addresses
    (`host:port,host:port`), else for the only cluster of this user on this machine. InputError as for `own_cluster`.
    """
    if name is not None or bootstrap is None:
        state = on_ray(own_cluster(name, "; or --bootstrap-server"))
        if state.address is None:
            raise InputError("--name", "", f"{state.options.name}, which is still starting", "a cluster that is ready")
        return [ClusterAddress(state.address, state.namespace, state.is_private)]
    addresses = [address.strip() for address in bootstrap.split(",")]
    for address in addresses:
        _split_address(address, BOOTSTRAP)
    here = [state for state in states() if state.is_running]
    return [_by_address(address, here) for address in addresses]


def own_cluster(name: str | None, otherwise: str = "") -> ClusterState:
    """The state of the running cluster of this user and name, or of the only one without a name; InputError where there
    is none, and where several run and no name is given (`otherwise` ends its line).
    """
    state = own_state(name, otherwise)
    if not state.is_running:
        raise InputError("--name", "", f"{state.options.name}, which has ended: {state.end}", "a cluster that runs")
    return state


def on_ray(state: ClusterState) -> ClusterState:
    """The state of a cluster on Ray. InputError for one of Apache Kafka, which its own tools address."""
    if state.options.engine != "ray":
        allowed = f"isray status, node, net and down; and Kafka's own tools with --bootstrap-server {state.address}"
        raise InputError("--name", "", f"{state.options.name}, a cluster of Apache Kafka", allowed)
    return state


def own_state(name: str | None, otherwise: str = "") -> ClusterState:
    """As `own_cluster`, but the cluster may have ended: the one of this name, else the only one that runs, else the
    only one that has left a state file.
    """
    known = states()
    if name is not None:
        found = read_state(name)
        if found is None:
            names = ", ".join(state.options.name for state in known)
            raise InputError("--name", "", f"{name}, which does not run", names) if names else NoClusterRuns
        return found
    candidates = [state for state in known if state.is_running] or known
    if not candidates:
        raise NoClusterRuns
    if len(candidates) > 1:
        names = ", ".join(state.options.name for state in candidates)
        verb = "run here" if candidates[0].is_running else "have ended here"
        raise MissingInput("--name", f"one of the clusters that {verb}: {names}{otherwise}")
    return candidates[0]


def state_of(name: str | None, address: str | None) -> ClusterState:
    """The state of the running cluster of this user on this machine that has this name, or runs on the Ray at this
    address, or is the only one. InputError where there is none, where the address is no Ray, and where several match.
    """
    if address is None:
        return on_ray(own_cluster(name))
    first_that_listens([ClusterAddress(address)], "--address")
    found = [it for it in states() if it.is_running and it.address == address and name in (None, it.options.name)]
    if not found:
        allowed = "the address of a cluster that you have started on this machine (isray up)"
        raise InputError("--address", "", f"{address}, where none of your clusters runs", allowed)
    if len(found) > 1:
        names = ", ".join(state.options.name for state in found)
        raise MissingInput("--name", f"one of the clusters on {address}: {names}")
    return found[0]


def _by_address(address: str, here: list[ClusterState]) -> ClusterAddress:
    matching = [state for state in here if state.address == address]
    namespace = matching[0].namespace if len(matching) == 1 else None
    return ClusterAddress(address, namespace, any(state.is_private for state in matching))


def _split_address(address: str, option: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InputError(option, "", address, "host:port of the Ray head, or several, by commas")
    return host, int(port)


class Connection(NamedTuple):
    """A connected cluster: channels through its client and to its nodes, and the names of its actors."""

    client: RayAdminChannel
    nodes: NodesChannel
    names: frozenset[str]


@contextmanager
def connection(candidates: list[ClusterAddress]) -> Iterator[Connection]:
    """Connects to the first candidate that accepts connections. InputError where none does, or where its Ray runs no
    cluster, or several and the namespace is not known.
    """
    target = first_that_listens(candidates, BOOTSTRAP)
    with joined(target, BOOTSTRAP) as store:
        import ray

        with _lost_control_store():
            actors = ask_control_store(lambda: ray.util.list_named_actors(all_namespaces=True), store)
        namespace = target.namespace or _only_cluster(target.address, actors)
        names = sorted(actor["name"] for actor in actors if actor["namespace"] == namespace)
        names = [name for name in names if name != SUPERVISOR]
        nodes = NodesChannel(namespace, store, names)
        yield Connection(RayAdminChannel(namespace, store), nodes, frozenset(names))


@contextmanager
def joined(target: ClusterAddress, option: str, modules: RayArguments | None = None) -> Iterator[str]:
    """Joins a Ray as a driver; yields the address of its control store. `option` named the address, `modules` are
    further arguments of `ray.init`. InputError where the Ray does not answer.
    """
    if target.loopback or listens_on_loopback_only(target.address):
        stay_on_loopback()
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    with ray_output_to_stderr():
        try:
            ray.init(target.address, logging_level=logging.ERROR, log_to_driver=False, **named_job(), **(modules or {}))
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(option, "", target.address, f"a Ray that answers ({error})") from error
        try:
            yield str(ray.get_runtime_context().gcs_address)
        finally:
            ray.shutdown()


def listens_on_loopback_only(address: str, own_host: str | None = None) -> bool:
    """Whether a Ray listens at this address of 127.0.0.1, and not at the machine's own one, by which Ray replaces that:
    the private one of a cluster whose state file is not known here. `own_host`: the machine's address, if it is known.
    """
    host, port = _split_address(address, BOOTSTRAP)
    if host not in _LOOPBACK:
        return False
    try:
        socket.create_connection((own_host or _own_host(), port), timeout=CONNECT_WITHIN_S).close()
    except OSError:
        return True
    return False


def _own_host() -> str:
    """The address of the interface from which packets would leave the machine; none is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:  # no network but loopback
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _only_cluster(address: str, actors: Sequence[Mapping[str, str]]) -> str:
    """The namespace of the only cluster that has a broker among the actors; InputError otherwise."""
    found = sorted({actor["namespace"] for actor in actors if actor["name"].startswith("broker-")})
    if len(found) != 1:
        clusters = f"{address}, which runs {', '.join(found) or 'no cluster'}"
        raise InputError(BOOTSTRAP, "", clusters, "a Ray that runs one cluster (of several: --name)")
    return found[0]


def first_that_listens(candidates: list[ClusterAddress], option: str) -> ClusterAddress:
    """The first candidate where a Ray listens; InputError where none does. `option` named the addresses."""
    for target in candidates:
        try:
            require_ray(*_split_address(target.address, option), CONNECT_WITHIN_S)
            return target
        except OSError as error:
            refusal = error
    addresses = ", ".join(target.address for target in candidates)
    raise InputError(option, "", addresses, f"host:port of a running Ray head ({refusal})")
