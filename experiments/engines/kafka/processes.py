"""A cluster of processes of one life cycle: folders, disks, ports and links of nodes that are formatted, started,
stopped, killed and paused. It knows nothing of scenarios; `engine.py` drives it.

No process outlives the one that has started it: `close` ends them, SIGTERM raises SystemExit while a cluster is open,
and where there is `setpriv` (util-linux) the kernel ends them if this process is killed. Terminals send signals to this
process only.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from experiments.engines.kafka.life_cycle import SHIPPED, LifeCycle, command_line, filled, read_life_cycle
from experiments.engines.kafka.links import Addresses, Links, host_name
from experiments.engines.kafka.properties import format_words, node_properties
from experiments.engines.port import ClusterSpec
from experiments.support.errors import InputError
from experiments.support.processes import orderly_signals
from experiments.support.releases.installed import Installed, installed_release
from experiments.support.releases.jdk import jdk
from protocol.ids import NodeId, is_controller

HEAP_MB = {True: 128, False: 256}
"""Megabytes of heap of a controller, and of a broker."""
FORMAT_WITHIN_S = 300
SHOWN_LINES = 3


class NodeFailed(InputError):
    """A node whose disk could not be formatted, or whose process has ended by itself: `what` has its last lines."""

    def __init__(self, node: NodeId, what: str) -> None:
        self.node, self.what = node, what
        super().__init__(f"node {node}", "", self.what, "a node that starts")


@dataclass(frozen=True, slots=True)
class Program:
    """What runs: a life cycle, and for one that needs it an installed release of Apache Kafka."""

    life_cycle: LifeCycle
    installed: Installed | None = None

    @classmethod
    def of(
        cls, release: str | None, environ: Mapping[str, str], life_cycle: Path = SHIPPED, option: str = "--kafka"
    ) -> Program:
        """An installed release, without a name the newest, by a life cycle, which may need none. InputError for a
        release that is not installed, and a file that is no life cycle.
        """
        cycle = read_life_cycle(life_cycle)
        if not cycle.release:
            return cls(cycle)
        return cls(cycle, installed_release(release, environ, option))


class ProcessCluster:
    """The nodes of `spec`, none of which runs. Without `with_links` they reach each other directly, and no link can be
    cut; with `with_listeners` brokers also listen for clients of other processes. InputError for a JDK that is missing
    or too old, a port that is taken, a disk that is full.
    """

    def __init__(
        self, spec: ClusterSpec, program: Program, *, with_links: bool = True, with_listeners: bool = False
    ) -> None:
        self.spec = spec
        self.program = program
        self.nodes = (*spec.controller_ids, *spec.broker_ids) if program.life_cycle.controllers else spec.broker_ids
        self.java = jdk(os.environ) if program.life_cycle.release else Path()
        self.folder = Path(tempfile.mkdtemp(prefix="isray-kafka-"))
        atexit.register(self.close)
        installed = program.installed
        is_archived = installed is not None and installed.archive.exists()
        self.archive = [f"-XX:SharedArchiveFile={installed.archive}"] if installed is not None and is_archived else []
        self.setpriv = shutil.which("setpriv")
        self._signals = ExitStack()
        if threading.current_thread() is threading.main_thread():
            self._signals.enter_context(orderly_signals())
        self.addresses = Addresses({})
        self.links: Links | None = None
        self._spawner = ThreadPoolExecutor(1)
        """Starts all processes: the kernel ends them with the thread that has started them."""
        self._processes: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._paused: set[NodeId] = set()
        self.cluster_id = _uuid(Random(self.folder.name))
        self.uuids = {node: _uuid(Random(f"{spec.seed}/disk/{node}")) for node in self.nodes}
        try:
            self.addresses = Addresses.free(self.nodes, spec.broker_ids if with_listeners else ())
            self.links = Links(self.addresses) if with_links else None
            for node in self.nodes:
                self._write_files(node)
            self._format_all()
        except BaseException:
            self.close()
            raise

    def home(self, node: NodeId) -> Path:
        """The folder of a node."""
        return self.folder / host_name(node)

    def disk(self, node: NodeId) -> Path:
        """The folder of a node's data."""
        return self.home(node) / "disk"

    def address(self, node: NodeId) -> tuple[str, int]:
        """Where this process reaches a node, past all links."""
        return "127.0.0.1", self.addresses.ports[node]

    def _values(self, node: NodeId) -> Mapping[str, object]:
        installed = self.program.installed
        others = (f"{host_name(it)}:{port}" for it, port in self.addresses.ports.items() if it != node)
        return {
            "id": node,
            "host": host_name(node),
            "port": self.addresses.ports[node],
            "folder": self.home(node),
            "disk": self.disk(node),
            "seeds": ",".join(others),
            "properties": node_properties(self.spec, node, self.addresses, str(self.disk(node))),
            "cluster_id": self.cluster_id,
            "java": self.java,
            "classpath": "" if installed is None else installed.classpath,
            "heap_mb": HEAP_MB[is_controller(node)],
        }

    def _write_files(self, node: NodeId) -> None:
        values = self._values(node)
        try:
            self.disk(node).mkdir(parents=True)
            self.addresses.write_hosts(self.home(node) / "hosts", node, self.links is not None)
            for name, text in self.program.life_cycle.files.items():
                (self.home(node) / name).write_text(filled(text, values))
        except OSError as error:
            raise InputError(str(self.home(node)), "", error.strerror, "a folder with room for the disks") from error

    def _format_all(self) -> None:
        """Formats the disks of a new cluster. Of Apache Kafka one disk of each kind, which is copied: the others differ
        in the ids of their `meta.properties` only, and a JVM for each would take a third of the start.
        """
        kinds: dict[object, list[NodeId]] = {}
        for node in self.nodes:
            voters = format_words(self.spec, node, self.addresses, self.uuids, is_new=True)["voters"]
            kind = (is_controller(node), *voters) if self.program.life_cycle.release else node
            kinds.setdefault(kind, []).append(node)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda nodes: self.format(nodes[0], is_new=True), kinds.values()))
        for first, *others in kinds.values():
            for node in others:
                shutil.copytree(self.disk(first), self.disk(node), dirs_exist_ok=True)
                ids = {"node.id": node, "directory.id": self.uuids[node]}
                path = self.disk(node) / "meta.properties"
                lines = (line.partition("=") for line in path.read_text().splitlines())
                path.write_text("".join(f"{name}{sign}{ids.get(name, value)}\n" for name, sign, value in lines))

    def format(self, node: NodeId, *, is_new: bool = False) -> None:
        """Formats the disk of a node that does not run. NodeFailed where that fails."""
        cycle = self.program.life_cycle
        if not cycle.format:
            return
        words = format_words(self.spec, node, self.addresses, self.uuids, is_new)
        line = command_line(cycle.format, self._values(node), {**words, "archive": self.archive})
        try:
            done = subprocess.run(
                line,
                env=self._environment(node),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FORMAT_WITHIN_S,
                check=False,
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NodeFailed(node, f"its disk could not be formatted: {error}") from error
        if done.returncode:
            raise NodeFailed(node, f"its disk could not be formatted: {_last(done.stdout + done.stderr)}")

    def _environment(self, node: NodeId) -> dict[str, str]:
        given = self.program.life_cycle.environment
        return os.environ | {name: filled(text, self._values(node)) for name, text in given.items()}

    def start(self, node: NodeId) -> None:
        """Starts a node that does not run, on its disk. NodeFailed where there is no such program."""
        line = command_line(self.program.life_cycle.start, self._values(node), {"archive": self.archive})
        if self.setpriv is not None:
            line = [self.setpriv, "--pdeathsig", "KILL", "--", *line]
        with (self.home(node) / "output").open("ab") as output:
            try:
                self._processes[node] = self._spawner.submit(
                    subprocess.Popen,
                    line,
                    env=self._environment(node),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ).result()
            except OSError as error:
                raise NodeFailed(node, f"it cannot be started: {error}") from error

    def is_running(self, node: NodeId) -> bool:
        """Whether the node's process exists."""
        process = self._processes.get(node)
        return process is not None and process.poll() is None

    def is_paused(self, node: NodeId) -> bool:
        return node in self._paused

    def is_listening(self, node: NodeId) -> bool:
        """Whether a node accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(self.address(node)) == 0

    def exit_code(self, node: NodeId) -> int | None:
        """With what a node's process has ended; None while it runs, and before its first start."""
        process = self._processes.get(node)
        return None if process is None else process.poll()

    def end_of(self, node: NodeId) -> str:
        """How a node's process has ended: by which signal, or with its last lines."""
        code = self.exit_code(node)
        if code is not None and code < 0:
            return f"it was ended by {signal.Signals(-code).name}"
        return f"it ended with exit code {code}: {self.last_lines(node) or 'it printed nothing'}"

    def pids(self) -> dict[NodeId, int]:
        return {node: process.pid for node, process in self._processes.items() if process.poll() is None}

    def kill(self, node: NodeId) -> None:
        """Kills a node's process, if it runs, and waits for its end."""
        if process := self._processes.get(node):
            process.kill()
            process.wait()
        if self.links is not None:
            self.links.forget(node)
        self._paused.discard(node)

    def stop(self, node: NodeId) -> None:
        """Begins a controlled shutdown."""
        self._signal(node, self.program.life_cycle.stop_signal)

    def pause(self, node: NodeId) -> None:
        self._signal(node, signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: NodeId) -> None:
        self._signal(node, signal.SIGCONT)
        self._paused.discard(node)

    def _signal(self, node: NodeId, number: signal.Signals) -> None:
        if self.is_running(node):
            self._processes[node].send_signal(number)

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        """Cuts or heals the link from `source` to `target`. Links of nodes that this cluster does not have are none."""
        if self.links is None:
            raise InputError("links", "", "a cluster without proxies", "a cluster that was started with them")
        if source in self.addresses.ports and target in self.addresses.ports:
            self.links.set(source, target, up)

    def wipe(self, node: NodeId) -> None:
        """Replaces the disk of a node that does not run by a formatted one."""
        shutil.rmtree(self.disk(node))
        self.disk(node).mkdir()
        self.format(node)

    def last_lines(self, node: NodeId) -> str:
        """The last lines that a node has printed, on one line."""
        path = self.home(node) / "output"
        return _last(path.read_text(errors="replace") if path.exists() else "")

    def close(self) -> None:
        """Kills all processes and removes all folders; may be called again."""
        atexit.unregister(self.close)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._spawner.shutdown()
        if self.links is not None:
            self.links.close()
        self.addresses.release()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._signals.close()


def _uuid(rng: Random) -> str:
    """A directory or cluster id as Kafka writes it: 16 bytes in base64, without a hyphen in front."""
    return "I" + base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")[1:]


def _last(text: str) -> str:
    """The last lines without those of stack traces, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    return " | ".join(lines[-SHOWN_LINES:])
