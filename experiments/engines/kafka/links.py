"""Links between the nodes of a cluster of processes: a proxy per pair of nodes, whose directions are cut one by one.

Every node has a name, `node-ID`, under which all others reach it, and each process has a hosts file of its own, in
which a name is the address of the proxy from that process to the named one: addresses of the loopback network, one per
pair, with the port of the target (`jdk.net.hosts.file` of the JDK). So the nodes are configured as on machines of their
own.

A cut link passes nothing on: what its sender has written stays in the proxy, also that a connection has ended, and goes
on when the link is healed, as TCP repeats what was lost. A connection that is opened meanwhile opens, and is silent. A
process that gives up (`request.timeout.ms`, `replica.socket.timeout.ms`) closes its side; so no request arrives twice.
What a killed process has written, and a cut link holds, is lost with it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from threading import Thread

from experiments.support.errors import InputError
from protocol.ids import NodeId

LOOPBACK = "127.0.0.1"
_FIRST = int(IPv4Address("127.64.0.1"))
_CHUNK = 65_536
WITHIN_S = 30


def host_name(node: NodeId) -> str:
    """The name under which other nodes reach a node."""
    return f"node-{node}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the nodes on this machine: a port each, and for each pair the address of its proxy.

    `client_ports` are those at which brokers listen for clients that do not know the nodes' names. `held` are sockets
    that are bound to the ports and never listen: while they exist no other process is given one of the ports, and the
    node's own process, which may reuse its address, listens there.
    """

    ports: Mapping[NodeId, int]
    client_ports: Mapping[NodeId, int] = field(default_factory=dict)
    held: tuple[socket.socket, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def free(cls, nodes: Iterable[NodeId], for_clients: Iterable[NodeId] = ()) -> Addresses:
        """Ports that no process uses, held until `release`. InputError where there is none."""
        held: list[socket.socket] = []

        def ports(nodes: Iterable[NodeId]) -> Iterator[tuple[NodeId, int]]:
            for node in nodes:
                held.append(socket.socket())
                held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held[-1].bind((LOOPBACK, 0))
                yield node, held[-1].getsockname()[1]

        try:
            return cls(dict(ports(nodes)), dict(ports(for_clients)), tuple(held))
        except OSError as error:
            for it in held:
                it.close()
            raise InputError("ports", "", error.strerror, "a free port per node") from error

    def release(self) -> None:
        """Gives the ports back."""
        for it in self.held:
            it.close()

    def proxy(self, source: NodeId, target: NodeId) -> str:
        """The address at which the process `source` reaches the node `target`; a process reaches itself directly."""
        if source == target:
            return LOOPBACK
        nodes = sorted(self.ports)
        return str(IPv4Address(_FIRST + nodes.index(source) * len(nodes) + nodes.index(target)))

    def write_hosts(self, path: Path, source: NodeId, through_proxies: bool) -> None:
        """Writes the hosts file of a process. The JVM asks it for every name, so it has those of this machine too."""
        own = [f"{LOOPBACK} localhost", f"{LOOPBACK} {socket.gethostname()}"]
        links = [f"{self.proxy(source, it) if through_proxies else LOOPBACK} {host_name(it)}" for it in self.ports]
        path.write_text("\n".join([*own, *links]) + "\n")


class Links:
    """The proxies of a cluster, in a thread of their own. InputError where a port is taken."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._cut: frozenset[tuple[NodeId, NodeId]] = frozenset()
        self._changed = asyncio.Event()
        self._killed = Counter[NodeId]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        try:
            self._run(self._listen())
        except OSError as error:
            self.close()
            raise InputError("ports", "", error.strerror or error, "ports that no other process uses") from error

    def set(self, source: NodeId, target: NodeId, up: bool) -> None:
        """Cuts or heals the link from `source` to `target`; returns when that is in force."""
        link = {(source, target)}
        self._run(self._change(self._cut - link if up else self._cut | link))

    def forget(self, node: NodeId) -> None:
        """Drops what a killed process has written and no one has received."""
        self._killed[node] += 1

    def heal(self) -> None:
        """Heals every link."""
        self._run(self._change(frozenset()))

    def close(self) -> None:
        """Ends all connections and the thread; may be called again."""
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN_S)

    async def _change(self, cut: frozenset[tuple[NodeId, NodeId]]) -> None:
        self._cut = cut
        self._changed.set()
        self._changed = asyncio.Event()

    async def _listen(self) -> None:
        for source in self._addresses.ports:
            for target, port in self._addresses.ports.items():
                if source != target:
                    accept = partial(self._accept, (source, target))
                    address = self._addresses.proxy(source, target)
                    self._servers.append(await asyncio.start_server(accept, address, port))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, link: tuple[NodeId, NodeId], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connect(link, self._killed[link[0]], reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(
        self, link: tuple[NodeId, NodeId], killed: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, opened when `link[0]` had been killed `killed` times, until both sides have ended it."""
        back = (link[1], link[0])
        ends = [writer]
        try:
            await self._pass(link)
            if self._killed[link[0]] != killed:
                return
            await self._pass(back)
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._addresses.ports[link[1]])
            ends.append(far_writer)
            await asyncio.gather(
                self._pump(link, killed, reader, far_writer),
                self._pump(back, self._killed[link[1]], far_reader, writer),
            )
        except OSError:
            await self._pass(back)  # a refusal is an answer too
        finally:
            for end in ends:
                end.close()

    async def _pass(self, link: tuple[NodeId, NodeId]) -> None:
        """Waits until the link is not cut."""
        while link in self._cut:
            await self._changed.wait()

    async def _pump(
        self, link: tuple[NodeId, NodeId], killed: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Passes on what the process of `link[0]` writes that had `killed` processes before it, and its end: both sides
        of a connection of Kafka's end together.
        """
        while data := await reader.read(_CHUNK):
            await self._pass(link)
            if self._killed[link[0]] != killed:
                break
            writer.write(data)
            await writer.drain()
        await self._pass(link)
        writer.close()
