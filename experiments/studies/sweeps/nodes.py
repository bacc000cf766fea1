"""The Ray cluster that runs a sweep: its CPUs, the nodes that it loses, and whether it still answers the driver.

Ray runs the tasks of a lost node elsewhere and does not report it. Where the control store or the raylet of the
driver's own node is lost, Ray ends the driver's process some seconds later, from C++, without an exception. So the
driver connects to each of the two ports from time to time, and ends the sweep while it can still report what is kept.
Ports that it cannot reach from the start, as those behind a Ray client's proxy, are left out.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.support.progress import Progress

CPUS_FOR_S = 10.0
"""How long a count of the cluster's CPUs and nodes is used: nodes may join and leave."""
LOOK_S = 1.0
"""How often the driver looks for the cluster while no task ends."""
CONNECT_S = 2.0
MISSED = 3


class WorkersLost(RuntimeError):
    """Ray could not run a batch: its workers died again and again, or the cluster is gone."""


@dataclass
class Endpoint:
    """A port of the cluster that accepted a connection before."""

    _what: str
    _host: str
    _port: int
    _missed: int = 0

    def answers(self) -> bool | None:
        """Whether it accepts a connection now; None if it refuses connections."""
        try:
            socket.create_connection((self._host, self._port), CONNECT_S).close()
        except OSError as error:
            return None if isinstance(error, ConnectionRefusedError) else False
        return True

    def look(self) -> None:
        """Raises WorkersLost if it refuses connections, or accepted none for `MISSED` looks in a row."""
        answers = self.answers()
        self._missed = 0 if answers else MISSED if answers is None else self._missed + 1
        if self._missed >= MISSED:
            raise WorkersLost(f"Ray is lost: {self._what} at {self._host}:{self._port} does not answer")


class Nodes:
    """The cluster that this process is connected to. Lost nodes are reported to `progress`."""

    def __init__(self, progress: Progress) -> None:
        import ray

        self._progress, self._alive, self._at_s = progress, alive_nodes(ray.nodes()), time.monotonic()
        context = ray.get_runtime_context()
        host, _, port = str(context.gcs_address).rpartition(":")
        endpoints = [Endpoint("its control store", host, int(port))]
        for node in ray.nodes():
            if node["NodeID"] == context.get_node_id():
                endpoints.append(Endpoint("the raylet", node["NodeManagerAddress"], node["NodeManagerPort"]))
        self._endpoints = [endpoint for endpoint in endpoints if endpoint.answers()]

    def look(self) -> None:
        """Raises WorkersLost if the cluster no longer answers."""
        for endpoint in self._endpoints:
            endpoint.look()

    def cpus(self) -> int:
        """The number of CPUs, at least 1; counted again when it is old. Raises WorkersLost."""
        if time.monotonic() - self._at_s > CPUS_FOR_S:
            self.count()
        return max(1, int(sum(self._alive.values())))

    def count(self) -> None:
        """Counts nodes and CPUs, and reports the nodes that are lost. Raises WorkersLost."""
        import ray

        self.look()
        now = alive_nodes(ray.nodes())
        for line in losses(self._alive, now):
            self._progress.note(line)
        self._alive, self._at_s = now, time.monotonic()


def alive_nodes(nodes: list[dict[str, Any]]) -> dict[str, float]:
    """The CPUs of each node that is alive, by its id and address, from the answer of `ray.nodes`."""
    return {
        f"{node['NodeID'][:8]} ({node['NodeManagerAddress']})": node["Resources"].get("CPU", 0.0)
        for node in nodes
        if node["Alive"]
    }


def cluster_cpus() -> int:
    """The number of CPUs of the Ray that this process is connected to, at least 1."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def losses(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """A line for each node that is lost."""
    return [
        f"Ray has lost node {node}; the tasks that ran there, at most {max(1, int(before[node]))}, are run again on "
        f"the others, {len(now)} now"
        for node in before
        if node not in now
    ]
