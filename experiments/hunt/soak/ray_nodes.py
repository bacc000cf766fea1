"""Several Ray nodes on this machine, private to one command: a head, and one further node per broker.

A Ray node is a raylet with its workers. What lives on the head (all nodes but brokers, and this process) survives the
death of any other Ray node; so a raylet can be killed as a machine's agent would be lost, and another be started in its
place. Ray notices such a death by its health checks, which are set to find it within two seconds: a process that is
gone refuses connections at once, while one that is only slow, on a busy machine, has ten seconds for its answer.

SIGKILL of a raylet leaves its workers alive, as long as this process has not reaped it: a worker whose raylet is gone
for good leaves by itself after a while. That is what makes an *orphan*: an actor that Ray has declared dead, and that
goes on. `reap` clears the raylet away.

Everything keeps its files in a folder of its own and listens on 127.0.0.1 only, unless this process imported ray before
`stay_on_loopback` could say so; the kernel ends all of it with this process.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.engines.ray.session import PRIVATE_ENVIRONMENT, orderly_signals, stay_on_loopback

NODE_CPUS = 2
OBJECT_STORE_BYTES = 80 * 1024 * 1024
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 5_000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}
_SHARED: dict[str, Any] = {
    "dashboard_agent_listen_port": None,  # any; that of a head is the same one on every machine otherwise
    "num_cpus": NODE_CPUS,
    "object_store_memory": OBJECT_STORE_BYTES,
}


class RayNodes:
    """See the module docstring; made by `ray_nodes`. Nodes are named by their Ray node ids."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: dict[str, Any] = {}

    @property
    def head(self) -> str:
        return str(self._cluster.head_node.node_id)

    @property
    def workers(self) -> list[str]:
        """The nodes other than the head, in the order in which they were added."""
        return list(self._nodes)

    def add(self) -> str:
        """Starts a node; returns when it is up, which takes seconds. Call from the main thread, as Ray wants it."""
        node = start_node(self._cluster)
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def kill_raylet(self, node_id: str) -> None:
        """SIGKILL to the raylet of a node, and to nothing else. Its workers become orphans."""
        os.kill(_raylet(self._nodes[node_id]).pid, signal.SIGKILL)

    def reap(self, node_id: str) -> None:
        """Clears away what is left of a node whose raylet has been killed, and of its workers those that Ray knows."""
        self._cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)


def start_node(cluster: Any, **options: Any) -> Any:
    """Starts a node of a cluster, on ports that nobody else has."""
    from ray._private import ray_constants

    if not ray_constants.ENABLE_RAY_CLUSTER:  # the switch of `stay_on_loopback`, as ray has read it
        options["node_ip_address"] = "127.0.0.1"
    return cluster.add_node(**_SHARED, **options)


def _raylet(node: Any) -> Any:
    [process] = node.all_processes["raylet"]
    return process.process


@contextmanager
def ray_nodes(workers: int) -> Iterator[RayNodes]:
    """A head and so many further nodes for the block, to which this process is connected. Call from the main thread."""
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
                start_node(cluster, include_dashboard=False, _system_config=HEALTH_CHECKS)
                nodes = RayNodes(cluster)
                for _ in range(workers):
                    nodes.add()
                ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
            yield nodes
        finally:
            ray.shutdown()
            for node in [*cluster.worker_nodes, *([cluster.head_node] if cluster.head_node else [])]:
                cluster.remove_node(node, allow_graceful=False)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
