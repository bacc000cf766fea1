"""`isray up`, `isray down`, `isray status`: a cluster of processes on this machine, which the tools administer.

`up` stays in the foreground until Ctrl-C or SIGTERM. With `--detach` a background process supervises the cluster, and
the command returns when the cluster is ready: all brokers are unfenced and all controllers are voters of the quorum; in
generation `v3`, one broker is the controller and all are registered.

`status` ends with exit code 1 if the cluster is unhealthy. It is healthy if a controller is active, a majority of the
voters runs (in `v3` the store), all brokers run and are unfenced, and the recovery manager runs where the feature
levels require it. `status` asks the nodes themselves, so it needs no client. Which of them run the supervisor says, or
Ray for a cluster of another user.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Column, Table

from experiments.cli import cluster_access
from experiments.cli.cluster_access import BootstrapServer, CommandConfig, OwnCluster, Principal, Target, target_of
from experiments.cli.metadata_quorum import role_of
from experiments.cli.output import ExitCode, Json, fail, fail_if, flag, option, print_result, wide_console
from experiments.cli.parse import KafkaReleaseOption, name_values, release_of
from experiments.cli.server_properties import with_server_properties
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.engines.clusters.cluster_state import (
    NOT_RECORDED,
    ClusterOptions,
    ClusterState,
    properties_path,
    read_state,
    states,
)
from experiments.engines.clusters.launch import LaunchFailed, config_of, launch, stop
from experiments.engines.clusters.node_commands import (
    Ask,
    NodeAction,
    NodeCommand,
    NodeRow,
    NodeState,
    SupervisorGoneError,
)
from experiments.engines.ray.connection import own_state
from experiments.engines.ray.kept import find_kept, kept_options, mark_to_keep, read_kept
from experiments.engines.ray.session import stay_on_loopback
from experiments.engines.ray.supervision import by_socket
from experiments.support.errors import InputError
from protocol.config import LISTENERS
from protocol.errors import ErrorCode
from protocol.features import UNCLEAN_RECOVERY_ENABLED, Generation
from protocol.ids import NO_EPOCH, NO_LEADER, RECOVERY_MANAGER, STORE, Epoch, NodeId, is_controller, node_name
from protocol.messages.cluster import DescribedBroker
from protocol.messages.quorum import DescribeQuorumResponse, ReplicaState

BACKGROUND = "experiments.cli.background"
"""The module that runs a cluster in the background."""
ANY_PORT = "PLAINTEXT://:0"
"""The config `listeners` of `isray up --listeners`."""
_BROKER, _CONTROLLER = "broker-", "controller-"
NOT_REGISTERED = "not registered"
_PLACE_COLUMN = 5
"""The columns of `isray status` between the process and where it runs."""
ClusterName = Annotated[str, option("NAME", "Which of your clusters on this machine.")]


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker of `isray status --json`. One is not registered that has no session with the store (`v3`), or whose
    process waits until the session of the incarnation before has ended: until then the controller has the state of that
    one. `host` and `ray_node` are of its process, None where that is not known.
    """

    node: str
    running: bool
    state: str = NOT_REGISTERED
    broker_epoch: int = NO_EPOCH
    rack: str | None = None
    leads: int = 0
    replicas: int = 0
    host: str | None = None
    ray_node: str | None = None


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """A controller of `isray status --json`; what the leader of the quorum does not know is None, as are `host` and
    `ray_node` where there is no process or it is not known.
    """

    node: str
    running: bool
    role: str | None
    votes: bool
    directory_id: str | None
    lag: int | None
    host: str | None = None
    ray_node: str | None = None


Row = TypeVar("Row", BrokerRow, ControllerRow)


@dataclass(frozen=True, slots=True)
class ClusterDocument:
    """`isray status --json`, without what the cluster's state file adds."""

    controller: int
    controller_running: bool
    controllers: list[ControllerRow]
    voters: list[int]
    recovery_manager_running: bool
    brokers: list[BrokerRow]
    others: list[str]
    features: dict[str, int]
    healthy: bool


def up(
    brokers: Annotated[int | None, option("N", "How many brokers. Default: 3.", min=1, max=100)] = None,
    controllers: Annotated[
        int | None, option("N", "How many; all are voters. Default: 1; v3 has none.", min=1, max=9)
    ] = None,
    detach: Annotated[bool, flag("--detach", "Return when the cluster is ready.")] = False,
    generation: Annotated[
        Generation | None,
        typer.Option("--generation", help="The protocol generation: its feature levels. Default: kip-966."),
    ] = None,
    kafka_release: KafkaReleaseOption = None,
    config: Annotated[list[str] | None, option("NAME=VALUE", "A static config; may be repeated.")] = None,
    server_properties: Annotated[
        Path | None, option("FILE", "A server.properties of Kafka's, for its broker configs; --config wins.")
    ] = None,
    racks: Annotated[str | None, option("a,b,...", "One rack per broker.")] = None,
    name: Annotated[str | None, option("NAME", "The name of the cluster. Default: default.")] = None,
    kept: Annotated[
        str | None, option("DIR|NAME", "Start on the disks that isray down --keep has left.", "--from")
    ] = None,
    address: Annotated[str | None, option("HOST:PORT", "A Ray to run on. Default: a private one on 127.0.0.1.")] = None,
    trace: Annotated[Path | None, option("DIR", "A new folder for a recording, for isray check.")] = None,
    listeners: Annotated[
        bool, flag("--listeners", "Listen for Kafka's clients at free ports; --config listeners=... chooses them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a cluster: brokers and a quorum of controllers, each a process."""
    disks = None if kept is None else find_kept(kept)
    before = None if disks is None else read_kept(disks)
    chosen = generation or (Generation.KIP_966 if before is None else before.options.generation)
    has_store = chosen.features.metadata_in_store
    unfit = {"--controllers": controllers, "--racks": racks, "--listeners": "Kafka's clients" if listeners else None}
    for option_name, value in unfit.items():
        if has_store and value is not None:
            raise InputError(option_name, "", value, f"no such option with --generation {chosen.value}")
    release = None if kafka_release is None and before is not None else release_of(kafka_release, chosen)
    configs = _configs(config, server_properties, chosen)
    if listeners:
        configs = {LISTENERS: ANY_PORT} | configs
    asked: dict[str, object] = {
        "name": name,
        "brokers": brokers,
        "controllers": controllers,
        "generation": generation,
        "kafka_release": release,
        "racks": None if racks is None else _racks(racks, brokers or (3 if before is None else before.options.brokers)),
        "address": address or os.environ.get("RAY_ADDRESS"),
        "trace": None if trace is None else str(trace.absolute()),
    }
    if disks is not None and before is not None:
        options = kept_options(before, disks, asked, configs)
    else:
        given = {option: value for option, value in asked.items() if value is not None}
        given = {"controllers": 0 if has_store else 1} | given | {"generation": chosen, "config": configs}
        options = ClusterOptions.model_validate(given)
    config_of(options)
    _start(options, detach, as_json)


def _configs(config: list[str] | None, properties: Path | None, generation: Generation) -> dict[str, str]:
    """The static configs of `--config` and `--server-properties`; notes about the file go to standard error."""
    configs = name_values("--config", config)
    if properties is not None:
        configs, notes = with_server_properties(properties, generation, configs)
        for note in notes:
            typer.echo(f"isray: {note}", err=True)
    return configs


def _start(options: ClusterOptions, detach: bool, as_json: bool) -> None:
    if options.trace is not None:
        from experiments.check.recording import expect_new

        expect_new(Path(options.trace), "--trace")
    if not detach:
        _run(options, as_json)
        return
    try:
        state = launch(options, BACKGROUND)
    except LaunchFailed as error:
        fail(f"isray: {error}", code=ExitCode.WRONG_INPUT if error.is_input_wrong else ExitCode.FAILURE)
    _print_ready(state, as_json)


def _run(options: ClusterOptions, as_json: bool) -> None:
    if options.address is None:
        stay_on_loopback()
    from experiments.check.cluster_recorder import recorder_of
    from experiments.engines.ray.running import CLUSTER_FAILURES, run_cluster

    def ready(state: ClusterState) -> None:
        _print_ready(state, as_json)

    def report(text: str) -> None:
        typer.echo(f"isray: {text}", err=True)

    try:
        fail_if(not run_cluster(options, config_of(options), ready, report, recorder_of))
    except CLUSTER_FAILURES as error:
        fail(f"isray: {' '.join(str(error).split())}")


def _racks(option: str | None, brokers: int) -> tuple[str, ...]:
    racks = () if option is None else tuple(rack.strip() for rack in option.split(","))
    if option is not None and (len(racks) != brokers or not all(racks)):
        raise InputError("--racks", "", option, f"{brokers} racks, one per broker, separated by commas")
    return racks


def _print_ready(state: ClusterState, as_json: bool) -> None:
    options = state.options
    of = f"brokers: {options.brokers}, controllers: {options.controllers}, {options.generation.value}"
    text = f"{options.name} is ready ({of}): --bootstrap-server {state.address}"
    ports = ", ".join(f"http://{port}/metrics" for port in state.metrics)
    print_result(as_json, _known(state), typer.echo, f"{text}, metrics at {ports}")
    if options.trace is not None:
        typer.echo(f"isray: records to {options.trace}", err=True)
    if state.listeners and not as_json:
        for node, address in state.listeners.items():
            typer.echo(f"{node} listens at {address}")
        typer.echo(f"for Kafka's clients: {properties_path(options.name)}")


def _known(state: ClusterState) -> dict[str, object]:
    """The content of the cluster's state file, under the names of JSON documents."""
    return {
        "name": state.options.name,
        "bootstrap_server": state.address,
        "namespace": state.namespace,
        "pid": state.pid,
        "generation": state.options.generation.value,
        "trace": state.options.trace,
        "nodes": list(state.nodes),
        "metrics": list(state.metrics),
        "pids": dict(state.pids),
        "listeners": dict(state.listeners),
        "events": list(state.events),
    }


def down(
    name: Annotated[str | None, option("NAME", "Which of your clusters here. Default: the only one that runs.")] = None,
    keep: Annotated[bool, flag("--keep", "Leave the disks, for isray up --from.")] = False,
    as_json: Json = False,
) -> None:
    """End a cluster on this machine, and delete its disks. Without --name the only one that runs, or, if none does, the
    only one that has ended and left files."""
    state = own_state(name)
    folder = mark_to_keep(state, {row.node: row.host for row in _rows(state) or ()}) if keep else None
    stopped, name = stop(state, keeps_disks=keep), state.options.name
    document = {"name": name, "pid": state.pid, "ended": stopped.how, "disks": None if folder is None else str(folder)}
    where = "" if folder is None else f"; its disks are in {folder} (isray up --from {name})"
    unrecorded = not_recorded(state.options.trace, stopped.log)
    if unrecorded:
        typer.echo(f"isray: {state.options.trace}: {unrecorded}", err=True)
    print_result(as_json, document | {"not_recorded": unrecorded}, typer.echo, f"{name} {stopped.how}{where}")


def not_recorded(trace: str | None, log: str) -> str | None:
    """Why the recording in the folder `trace` is not complete, by the log of the supervisor that has ended; None where
    it is, or there is none.
    """
    from experiments.check.recording import OPEN_MANIFEST

    if trace is None or not (Path(trace) / OPEN_MANIFEST).exists():
        return None
    said = [line.removeprefix("isray: ") for line in log.splitlines() if NOT_RECORDED in line]
    return said[-1] if said else f"{NOT_RECORDED}: the supervisor ended before"


def status(
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """The nodes of a cluster: which run, which lead what, which vote, which are fenced; and the feature levels."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal)
    state = _own_state(target)
    known = {} if state is None else _known(state)
    if state is not None and not state.is_running:
        text = f"{state.options.name} has ended: {state.end} (isray down removes what it left)"
        fail(f"isray: {text}", known | {"healthy": False, "message": text} if target.as_json else None)
    rows = _rows(state)
    try:
        with cluster_access.open_admin(target, asks_nodes=True) as opened:
            rows = _rows_of(opened.ask) if rows is None else rows
            running = opened.names if rows is None else {row.node for row in rows if row.pid is not None}
            started = () if state is None else state.nodes
            found = cluster_document(opened.admin, running, started, rows or (), opened.broker_epoch)
    except AdminError as error:
        cluster_access.exit_refused("isray", error, target.as_json)
    print_result(target.as_json, known | asdict(found), _print_status, found, state, rows or ())
    fail_if(not found.healthy)


def _rows(state: ClusterState | None) -> tuple[NodeRow, ...] | None:
    """The nodes as the supervisor of a cluster of this user knows them, None where it does not answer."""
    return None if state is None else _rows_of(by_socket(state))


def _rows_of(ask: Ask) -> tuple[NodeRow, ...] | None:
    """The nodes as a supervisor knows them, None where it does not answer."""
    try:
        return ask(NodeCommand(action=NodeAction.LIST)).rows or None
    except SupervisorGoneError:
        return None


def _own_state(target: Target) -> ClusterState | None:
    """The state file of the target, if it is a cluster of this user."""
    if target.name is not None:
        return read_state(target.name)
    own = states()
    if target.bootstrap is not None:
        return next((state for state in own if state.address == target.bootstrap), None)
    found = [state for state in own if state.is_running] or own
    return found[0] if len(found) == 1 else None


def cluster_document(
    admin: AdminClient,
    running: set[str],
    started: Sequence[str],
    rows: Sequence[NodeRow],
    broker_epoch: Callable[[str], Epoch | None],
) -> ClusterDocument:
    """The state of a cluster. `running` are the names of the nodes that have a process, `started` of those that were
    started with the cluster, as far as that is known; `rows` are the nodes as the supervisor knows them. Registered
    brokers and voters are listed in any case. `broker_epoch` asks a broker that runs (`Opened`).
    """
    processes = {row.node: row for row in rows}
    silent = {row.node for row in rows if row.state is NodeState.PAUSED}
    epochs = {name: broker_epoch(name) for name in sorted(running - silent) if name.startswith(_BROKER)}
    quorum, has_quorum = _quorum(admin)
    cluster = admin.describe_cluster()
    partitions = [partition for topic in admin.describe_topics() for partition in topic.partitions]
    features = {it.name: it.finalized_version_level for it in admin.describe_features()} if has_quorum else {}
    brokers = [
        BrokerRow(
            node=node_name(broker.broker_id),
            running=node_name(broker.broker_id) in running,
            state=_broker_state(broker, epochs.get(node_name(broker.broker_id))),
            broker_epoch=broker.broker_epoch,
            rack=broker.rack,
            leads=sum(partition.leader_id == broker.broker_id for partition in partitions),
            replicas=sum(broker.broker_id in partition.replica_nodes for partition in partitions),
        )
        for broker in cluster.brokers
    ]
    gone = sorted({name for name in started if name.startswith(_BROKER)} - {row.node for row in brokers})
    brokers += [BrokerRow(name, name in running) for name in (gone if not has_quorum else ())]
    brokers = [_placed(row, processes.get(row.node)) for row in brokers]
    controllers = [_placed(row, processes.get(row.node)) for row in _controllers(quorum, running, started)]
    voters = [] if quorum is None else quorum.voters
    has_majority = sum(row.votes and row.running for row in controllers) > len(voters) // 2
    manager = node_name(RECOVERY_MANAGER) in running
    active = cluster.controller_id if not has_quorum else NO_LEADER if quorum is None else quorum.leader_id
    is_active = active != NO_LEADER and node_name(active) in running
    return ClusterDocument(
        controller=active,
        controller_running=is_active,
        controllers=controllers,
        voters=[voter.replica_id for voter in voters],
        recovery_manager_running=manager,
        brokers=brokers,
        others=sorted(running - {row.node for row in brokers} - {row.node for row in controllers}),
        features=features,
        healthy=(has_majority if has_quorum else node_name(STORE) in running)
        and is_active
        and (manager or not features.get(UNCLEAN_RECOVERY_ENABLED))
        and all(broker.running and broker.state == "unfenced" for broker in brokers),
    )


def _placed(row: Row, process: NodeRow | None) -> Row:
    """The row with the machine of the node's process, as far as that is known."""
    return row if process is None else replace(row, host=process.host, ray_node=process.ray_node)


def _quorum(admin: AdminClient) -> tuple[DescribeQuorumResponse | None, bool]:
    """The quorum as its leader knows it, None where no controller is active; and whether the generation has one."""
    try:
        return admin.describe_quorum(), True
    except AdminError as error:
        if error.error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNSUPPORTED_VERSION):
            raise
        return None, error.error is not ErrorCode.UNSUPPORTED_VERSION


def _controllers(
    quorum: DescribeQuorumResponse | None, running: set[str], started: Sequence[str]
) -> list[ControllerRow]:
    """A row per controller: its process and its role in the quorum. Of several disks of one controller, the one that
    fetched last belongs to its process.
    """
    disks: dict[NodeId, ReplicaState] = {}
    for state in () if quorum is None else (*quorum.voters, *quorum.observers):
        newest = disks.get(state.replica_id)
        if is_controller(state.replica_id) and (newest is None or state.last_fetch_ms > newest.last_fetch_ms):
            disks[state.replica_id] = state
    known = {node_name(node): state for node, state in disks.items()}
    others = {name for name in (*running, *started) if name.startswith(_CONTROLLER)}
    return [
        ControllerRow(
            node=name,
            running=name in running,
            role=None if quorum is None or state is None else role_of(state, quorum).lower(),
            votes=quorum is not None and state in quorum.voters,
            directory_id=None if state is None else state.replica_uuid,
            lag=None if state is None else state.lag,
        )
        for name, state in ((name, known.get(name)) for name in sorted({*known, *others}))
    ]


def _broker_state(registered: DescribedBroker, epoch: Epoch | None) -> str:
    """The state of a broker by the controller; `epoch`: the one of its process, None where that is not known."""
    if epoch not in (None, registered.broker_epoch):
        return NOT_REGISTERED
    return (
        "fenced" if registered.is_fenced else "controlled shutdown" if registered.in_controlled_shutdown else "unfenced"
    )


def _print_status(found: ClusterDocument, state: ClusterState | None, nodes: Sequence[NodeRow]) -> None:
    console = wide_console()
    known = {row.node: row for row in nodes}
    pids = {} if state is None else state.pids
    if state is not None:
        options = state.options
        console.print(f"{options.name}: {options.generation.value}, {state.address}, process {state.pid}")
    table = Table("node", Column("process", no_wrap=True), "state", "epoch", "leads", "replicas", "rack", box=None)
    if nodes:
        table.add_column("host")
        table.add_column("Ray node", no_wrap=True)
    rows = [(row.node, row.running, [row.role or ""]) for row in found.controllers]
    if found.recovery_manager_running or found.features.get(UNCLEAN_RECOVERY_ENABLED):
        rows.append((node_name(RECOVERY_MANAGER), found.recovery_manager_running, []))
    if not found.features:
        rows.append((node_name(STORE), node_name(STORE) in found.others, []))
    for broker in found.brokers:
        numbers = [str(number) for number in (broker.broker_epoch, broker.leads, broker.replicas)]
        rows.append((broker.node, broker.running, [broker.state, *numbers, broker.rack or ""]))
    for node, is_running, texts in rows:
        row = known.get(node)
        by_file = pids.get(node, "runs") if is_running else "ended"
        where = ["", ""] if row is None else [row.host or "", (row.ray_node or "")[:8]]
        cells = [*texts, *[""] * (_PLACE_COLUMN - len(texts)), *where] if nodes else texts
        table.add_row(node, str(by_file if row is None else row.pid or row.state), *cells)
    console.print(table)
    if found.features:
        voters = ", ".join(map(str, found.voters))
        console.print(f"voters: {voters}" if voters else "no controller is active")
        console.print("features: " + " ".join(f"{key}={level}" for key, level in found.features.items()))
    else:
        console.print(f"controller: {node_name(found.controller)}; metadata in a store")
    for row in nodes:
        if row.state in (NodeState.PAUSED, NodeState.WAITING):
            console.print(f"{row.node} is {row.state}{row.reason and f': {row.reason}'}", markup=False, soft_wrap=True)
    for event in () if state is None else state.events:
        console.print(event, markup=False, soft_wrap=True)
