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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Column, Table

from experiments.cli import cluster_access
from experiments.cli.cluster_access import BootstrapServer, Target, on_cluster
from experiments.cli.cluster_document import ClusterDocument, cluster_document, kafka_document
from experiments.cli.kafka_cluster import ClusterFailed, EngineName, kafka_options, refuse_given, run_engine
from experiments.cli.output import ExitCode, Json, fail, fail_if, flag, option, print_result, wide_console
from experiments.cli.parse import KafkaReleaseOption, name_values, release_of
from experiments.cli.server_properties import with_server_properties
from experiments.engines.admin_client import AdminError
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
from experiments.engines.ray.supervision import by_socket
from experiments.support.errors import InputError
from protocol.config import LISTENERS
from protocol.features import UNCLEAN_RECOVERY_ENABLED, Generation
from protocol.ids import RECOVERY_MANAGER, STORE, node_name

BACKGROUND = "experiments.cli.background"
"""The module that runs a cluster in the background."""
ANY_PORT = "PLAINTEXT://:0"
"""The config `listeners` of `isray up --listeners`."""
_PLACE_COLUMN = 5
"""The columns of `isray status` between the process and where it runs."""
ClusterName = Annotated[str, option("NAME", "Which of your clusters on this machine.")]


def up(
    brokers: Annotated[int | None, option("N", "How many brokers. Default: 3.", min=1, max=100)] = None,
    controllers: Annotated[
        int | None, option("N", "How many; all are voters. Default: 1; v3 has none.", min=1, max=9)
    ] = None,
    detach: Annotated[bool, flag("--detach", "Return when the cluster is ready.")] = False,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="ray: isray's nodes; kafka: those of an installed Apache Kafka.")
    ] = EngineName.RAY,
    kafka: Annotated[
        str | None,
        option("RELEASE", "With --engine kafka: an installed release (isray kafka list), otherwise the newest."),
    ] = None,
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
    asked: dict[str, object] = {
        "name": name,
        "brokers": brokers,
        "controllers": controllers,
        "generation": generation,
        "trace": None if trace is None else str(trace.absolute()),
    }
    if engine is EngineName.KAFKA:
        ray_only = {"--kafka-release": kafka_release, "--from": kept, "--address": address}
        refuse_given(ray_only | {"--server-properties": server_properties}, "--engine kafka", "--engine ray")
        placed = {"racks": None if racks is None else _racks(racks, brokers or 3)}
        options = kafka_options(asked | placed | {"config": name_values("--config", config)}, kafka)
    else:
        refuse_given({"--kafka": kafka}, "--engine ray", "--engine kafka")
        asked["address"] = address or os.environ.get("RAY_ADDRESS")
        options = _on_ray(asked, kept, kafka_release, racks, listeners, (config, server_properties))
    _start(options, detach, as_json)


def _on_ray(
    asked: dict[str, object],
    kept: str | None,
    kafka_release: str | None,
    racks: str | None,
    listeners: bool,
    configs_of: tuple[list[str] | None, Path | None],
) -> ClusterOptions:
    """The options of a cluster on Ray, on kept disks those of the cluster before that are not `asked` otherwise."""
    disks = None if kept is None else find_kept(kept)
    before = None if disks is None else read_kept(disks)
    chosen = cast(Generation | None, asked["generation"])
    chosen = chosen or (Generation.KIP_966 if before is None else before.options.generation)
    has_store = chosen.features.metadata_in_store
    controllers = asked["controllers"]
    unfit = {"--controllers": controllers, "--racks": racks, "--listeners": "Kafka's clients" if listeners else None}
    for option_name, value in unfit.items():
        if has_store and value is not None:
            raise InputError(option_name, "", value, f"no such option with --generation {chosen.value}")
    configs = _configs(*configs_of, chosen)
    if listeners:
        configs = {LISTENERS: ANY_PORT} | configs
    brokers = asked["brokers"] or (3 if before is None else before.options.brokers)
    asked = asked | {
        "kafka_release": None if kafka_release is None and before is not None else release_of(kafka_release, chosen),
        "racks": None if racks is None else _racks(racks, cast(int, brokers)),
    }
    if disks is not None and before is not None:
        options = kept_options(before, disks, asked, configs)
    else:
        given = {option: value for option, value in asked.items() if value is not None}
        given = {"controllers": 0 if has_store else 1} | given | {"generation": chosen, "config": configs}
        options = ClusterOptions.model_validate(given)
    config_of(options)
    return options


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
    def ready(state: ClusterState) -> None:
        _print_ready(state, as_json)

    def report(text: str) -> None:
        typer.echo(f"isray: {text}", err=True)

    try:
        fail_if(not run_engine(options, ready, report))
    except ClusterFailed as error:
        fail(f"isray: {error}")


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
    print_result(as_json, _known(state), typer.echo, f"{text}, metrics at {ports}" if ports else text)
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
        "engine": state.options.engine,
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


@on_cluster(server=BootstrapServer)
def status(target: Target) -> None:
    """The nodes of a cluster: which run, which lead what, which vote, which are fenced; and the feature levels."""
    state = _own_state(target)
    known = {} if state is None else _known(state)
    if state is not None and not state.is_running:
        text = f"{state.options.name} has ended: {state.end} (isray down removes what it left)"
        fail(f"isray: {text}", known | {"healthy": False, "message": text} if target.as_json else None)
    if state is not None and state.options.engine == "kafka":
        found, processes = kafka_document(by_socket(state))
        print_result(target.as_json, known | asdict(found), _print_status, found, state, processes)
        fail_if(not found.healthy)
        return
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
