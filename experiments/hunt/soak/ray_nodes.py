"""Several Ray nodes on this machine, private to one command: a head, and one further node per broker.

Actors on the head (all nodes but the brokers) and this process survive the death of any other Ray node; so a raylet can
be killed, as if a machine's Ray agent were lost, and another one started in its place. Ray detects such a death by
health checks, here within two seconds: an ended process refuses connections at once, while one that is slow, on a busy
machine, has ten seconds to answer. SIGKILL of a raylet leaves its workers running as *orphans*, actors that Ray has
declared dead, until this process has reaped the raylet (`reap`).

The Ray nodes keep their files in one folder and listen on 127.0.0.1 only, unless this process imported ray before it
called `stay_on_loopback`; the kernel ends all of them with this process.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.engines.ray.session import PRIVATE_ENVIRONMENT, Handle, RayArguments, RayStartError, stay_on_loopback
from experiments.support.processes import kill, orderly_signals, processes_naming

NODE_CPUS = 2
OBJECT_STORE_BYTES = 80 * 1024 * 1024
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 5_000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}
_SHARED: RayArguments = {
    "dashboard_agent_listen_port": None,  # any; that of a head is the same one on every machine otherwise
    "object_store_memory": OBJECT_STORE_BYTES,
}


class RayNodes:
    """The head and the further nodes of a private Ray, by Ray node id; created by `ray_nodes`."""

    def __init__(self, cluster: Handle, cpus: int) -> None:
        self._cluster, self._cpus = cluster, cpus
        self._nodes: dict[str, Handle] = {}

    @property
    def head(self) -> str:
        return str(self._cluster.head_node.node_id)

    @property
    def workers(self) -> list[str]:
        """The nodes other than the head, oldest first."""
        return list(self._nodes)

    def add(self, rack: str | None = None) -> str:
        """Starts a node, which takes seconds, with the label of a rack, and returns its id. Call from the main thread,
        as Ray requires."""
        node = start_node(self._cluster, num_cpus=self._cpus, labels={} if rack is None else {"rack": rack})
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def kill_raylet(self, node_id: str) -> None:
        """Sends SIGKILL to the raylet of a node, and to no other process; its workers become orphans."""
        [raylet] = self._nodes[node_id].all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)

    def kill_control_store(self) -> None:
        """Sends SIGKILL to the control store of all nodes."""
        [process] = self._cluster.head_node.all_processes["gcs_server"]
        os.kill(process.process.pid, signal.SIGKILL)

    def reap(self, node_id: str) -> None:
        """Ends all processes of a node that it still has, and the workers that Ray still knows."""
        self._cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)


def start_node(cluster: Handle, num_cpus: int = NODE_CPUS, **options: object) -> Handle:
    """Starts a node of a cluster on free ports. RayStartError where Ray gives up, as it does after 30 s on a busy
    machine; Ray has no class for this error.
    """
    from ray._private import ray_constants

    if not ray_constants.ENABLE_RAY_CLUSTER:  # the variable of `stay_on_loopback`, as ray has read it
        options["node_ip_address"] = "127.0.0.1"
    try:
        return cluster.add_node(num_cpus=num_cpus, **_SHARED, **options)
    except Exception as error:
        raise RayStartError(f"a Ray node did not start: {' '.join(str(error).split())}") from error


@contextmanager
def ray_nodes(workers: int, cpus: int = NODE_CPUS) -> Iterator[RayNodes]:
    """Starts a head and `workers` further nodes, each with that many CPUs for Ray, and connects this process to them.
    Call from the main thread."""
    stay_on_loopback()
    before = {name: os.environ.get(name) for name in (*PRIVATE_ENVIRONMENT, "RAY_TMPDIR")}
    with orderly_signals(), tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "ray").mkdir()
        os.environ.update(PRIVATE_ENVIRONMENT, RAY_TMPDIR=folder)
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            with orderly_signals():
                start_node(cluster, cpus, include_dashboard=False, _system_config=HEALTH_CHECKS)
                nodes = RayNodes(cluster, cpus)
                for _ in range(workers):
                    nodes.add()
                ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
            yield nodes
        finally:
            ray.shutdown()
            for node in [*cluster.worker_nodes, *([cluster.head_node] if cluster.head_node else [])]:
                cluster.remove_node(node, allow_graceful=False)
            for pid in processes_naming([Path(folder)]):
                kill(pid)  # agents, which try for a minute to report the end of their raylet to the control store
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
