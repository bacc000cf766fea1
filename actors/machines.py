"""The machines of a Ray cluster, and small tasks that run on a chosen one of them."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path
from random import Random

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.placement import Machine
from actors.processes import ProcessId, machine_id, signal_process, start_ticks
from actors.storage import DamageKind, damage_tails

_LOOK_AGAIN_S = 0.02
RACK_LABEL = "rack"
"""The Ray node label that names a machine's rack."""


class UnreachableError(RuntimeError):
    """A process cannot be reached: no Ray node of its machine is alive or answers."""


def machines() -> list[Machine]:
    """The live Ray nodes that have CPUs: the one of this process first, then by address and id."""
    own = own_node()
    found = [
        Machine(node["NodeID"], node["NodeManagerHostname"], node["Labels"].get(RACK_LABEL))
        for node in sorted(ray.nodes(), key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
        if node["Alive"] and node["Resources"].get("CPU", 0) > 0
    ]
    return sorted(found, key=lambda machine: machine.ray_node != own)


def metrics_ports() -> list[str]:
    """host:port of the metrics of each live Ray node, for Prometheus."""
    found = sorted((node["NodeManagerAddress"], node["MetricsExportPort"]) for node in ray.nodes() if node["Alive"])
    return [f"{host}:{port}" for host, port in found]


def own_node() -> str:
    """The id of the Ray node that this process uses."""
    return str(ray.get_runtime_context().get_node_id())


def is_alive(ray_node: str) -> bool:
    """Whether the Ray node with this id is alive."""
    return any(node["NodeID"] == ray_node and node["Alive"] for node in ray.nodes())


def pin(home: str) -> NodeAffinitySchedulingStrategy:
    """Schedules on the Ray node with this id and no other."""
    return NodeAffinitySchedulingStrategy(home, soft=False)


def send_signal(process: ProcessId, number: int, within_s: float) -> None:
    """Sends a signal to a process, at once to one of this machine. To one of another machine it goes by tasks there,
    and may arrive twice: one on each of its Ray nodes, since one of them may be lost without Ray having noticed. The
    first that reaches the process is enough.

    ProcessLookupError where the process has ended, UnreachableError where no task runs in time.
    """
    if process.machine == machine_id():
        signal_process(process, number)
        return
    neighbours = [machine.ray_node for machine in machines() if machine.host == process.host]
    if not neighbours:
        raise UnreachableError(f"its Ray node is lost, and no other one runs on {process.host}")
    waiting = [_signal.options(scheduling_strategy=pin(home)).remote(process, number) for home in neighbours]
    deadline_s = time.monotonic() + within_s
    has_ended = False
    while waiting and (left_s := deadline_s - time.monotonic()) > 0:
        done, waiting = ray.wait(waiting, timeout=left_s)
        for task in done:
            try:
                ray.get(task)
                return
            except ProcessLookupError:
                has_ended = True
            except RayTaskError:
                raise
            except RayError:
                continue  # this Ray node is lost
    if has_ended:
        raise ProcessLookupError(f"process {process.pid} on {process.host} has ended")
    raise UnreachableError(f"its Ray node on {process.host} is lost or does not answer")


def remove_remotely(folder: Path, within_s: float) -> None:
    """Removes the folder of this path on all machines but this one."""
    here = socket.gethostname()
    pins = [pin(machine.ray_node) for machine in machines() if machine.host != here]
    removed = [_remove_directory.options(scheduling_strategy=other).remote(folder) for other in pins]
    if removed:
        ray.wait(removed, num_returns=len(removed), timeout=within_s)


def damage_remotely(process: ProcessId, directory: Path, kind: DamageKind, seed: str, within_s: float) -> int:
    """Damages the log ends in the directory of a process that has ended or is about to (`storage.damage_tails`), on its
    machine, at once on this one; returns the number of damaged logs. UnreachableError where that is not done in time.
    """
    try:
        if process.machine == machine_id():
            return _damage_ended(process, directory, kind, seed, within_s)
        neighbours = [machine.ray_node for machine in machines() if machine.host == process.host]
        tasks = [
            _damage.options(scheduling_strategy=pin(home)).remote(process, directory, kind, seed, within_s / 2)
            for home in neighbours[:1]
        ]
        done = ray.wait(tasks, timeout=within_s)[0] if tasks else []
        if not done:
            raise UnreachableError(f"no Ray node on {process.host} answers")
        return int(ray.get(done[0]))
    except TimeoutError as error:
        raise UnreachableError(f"process {process.pid} on {process.host} does not end") from error


def _damage_ended(process: ProcessId, directory: Path, kind: DamageKind, seed: str, within_s: float) -> int:
    deadline_s = time.monotonic() + within_s
    while start_ticks(process.pid) == process.ticks:
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(_LOOK_AGAIN_S)
    return damage_tails(directory, kind, Random(seed))


_damage = ray.remote(num_cpus=0)(_damage_ended)
_signal = ray.remote(num_cpus=0)(signal_process)


@ray.remote(num_cpus=0)
def _remove_directory(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
