"""Runs a cluster for as long as this process lasts: connects to Ray, starts the nodes, supervises them, ends them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path

from actors.cluster import ActorCluster
from actors.machines import machines
from actors.placement import NoRayNodeError, PlacementError, unknown_racks
from experiments.engines.clusters.cluster_state import (
    ClusterOptions,
    ClusterState,
    claim,
    read_state,
    remove_state,
    socket_path,
    write_state,
)
from experiments.engines.clusters.launch import NotReadyError
from experiments.engines.clusters.node_commands import NodeServer, ask
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.kept import is_kept, lock_disks, read_kept, write_kept
from experiments.engines.ray.remote_commands import serving_remote_commands
from experiments.engines.ray.session import (
    ControlStoreLostError,
    RaySession,
    RayStartError,
    ray_session,
)
from experiments.engines.ray.supervisor import POLL_S, RayLostError, Report, Supervisor
from experiments.engines.ray.tap import ClusterRecorder, ClusterTap
from experiments.support.errors import InputError
from experiments.support.processes import signals_handled
from protocol.config import ClusterConfig
from protocol.ids import node_name

RAY_FAILURES = (ControlStoreLostError, RayLostError)
CLUSTER_FAILURES = (NotReadyError, NoRayNodeError, PlacementError, RayStartError)
"""The errors of `run_cluster` that are not caused by the input."""
RecorderOf = Callable[[Path, str, ClusterSpec], ClusterRecorder]
"""Makes the recorder of a cluster: folder, name, and what is run."""


def run_cluster(
    options: ClusterOptions,
    config: ClusterConfig,
    ready: Callable[[ClusterState], None],
    report: Report,
    recorder_of: RecorderOf,
) -> bool:
    """Runs a cluster until a signal ends it. Calls `ready` with its state once it is ready, and `report` with a line
    for each node that ends. `recorder_of` makes the recorder of `options.trace`. Call from the main thread.

    Returns False where Ray was lost; that has been reported, since Ray may end this process when it is shut down then.
    InputError where the name is taken, the Ray cannot be reached or a broker's rack is none of its racks; one of
    `CLUSTER_FAILURES` where the cluster does not become ready.
    """
    state = claim(options)
    try:
        with _kept_disks(options), ray_session(options.address) as session:
            found = machines()
            if unknown := unknown_racks(dict(enumerate(options.racks)), found):
                known = sorted({machine.rack for machine in found if machine.rack is not None})
                allowed = f"the racks of the Ray nodes (label rack): {', '.join(known)}"
                raise InputError("--racks", "", unknown[0], allowed)
            try:
                _supervise(options, config, state, session, ready, report, recorder_of)
            except RAY_FAILURES as error:
                ended = {"end_reason": str(error), "pids": {}}
                write_state((read_state(options.name) or state).model_copy(update=ended))
                report(str(error))
                return False
    except BaseException:
        remove_state(options.name)
        raise
    remove_state(options.name)
    return True


def _kept_disks(options: ClusterOptions) -> AbstractContextManager[object]:
    """Holds the lock of kept disks for the block, if the cluster runs on such. InputError where another one does."""
    return nullcontext() if options.disks is None else closing(lock_disks(Path(options.disks), options.name))


def _supervise(
    options: ClusterOptions,
    config: ClusterConfig,
    state: ClusterState,
    session: RaySession,
    ready: Callable[[ClusterState], None],
    report: Report,
    recorder_of: RecorderOf,
) -> None:
    """Runs the cluster on a Ray until a signal ends it."""
    spec = ClusterSpec(options.brokers, options.controllers, config)
    racks = dict(enumerate(options.racks))
    store = spec.store_settings if spec.store_ids else None
    with ExitStack() as stack:
        recorder = None if options.trace is None else recorder_of(Path(options.trace), options.name, spec)
        if recorder is not None:
            stack.callback(recorder.close)
        cluster = ActorCluster(
            spec.member_ids,
            config,
            spec.seed,
            racks,
            voters=spec.first_voters,
            store=store,
            label=options.name,
            records_calls=recorder is not None,
        )
        if options.disks is None:
            stack.callback(lock_disks(cluster.folder, options.name).close)
        else:
            cluster.use_disks(read_kept(Path(options.disks)).disks_in(Path(options.disks)))
        tap = None if recorder is None else ClusterTap(cluster, recorder)
        try:
            folders = [str(folder) for folder in (session.folder, cluster.folder) if folder is not None]
            known = {"address": session.address, "namespace": cluster.run, "folders": tuple(folders)}
            nodes = tuple(node_name(node) for node in spec.node_ids)
            state = state.model_copy(update=known | {"nodes": nodes, "disks": str(cluster.folder)})
            write_state(state)
            _serve(Supervisor(cluster, spec, state, report, tap), cluster, options, ready)
        except ControlStoreLostError:
            cluster.abandon()
            raise
        except BaseException:
            cluster.close()
            raise
        cluster.close()


def _serve(
    supervisor: Supervisor, cluster: ActorCluster, options: ClusterOptions, ready: Callable[[ClusterState], None]
) -> None:
    """Starts the nodes, and carries out commands until a signal comes."""
    supervisor.start()
    write_kept(cluster, options)
    path, stop = socket_path(options.name), threading.Event()
    with signals_handled((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), lambda _: stop.set()):
        remote = serving_remote_commands(cluster.run, lambda command: ask(supervisor.state, command))
        with NodeServer(path, supervisor.carry_out) as commands, remote:
            ready(supervisor.state)
            commands.timeout = POLL_S
            while not stop.is_set():
                commands.handle_request()
                supervisor.poll()
        supervisor.resume_all()
        supervisor.finish_recording()
        cluster.keeps_disks = is_kept(cluster.folder)
        write_kept(cluster, options)
