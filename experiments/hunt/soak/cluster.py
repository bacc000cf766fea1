"""The cluster of a soak, with the operations that faults need: signals to processes, waiting, a health check.

Every wait is for a condition, and the workload goes on meanwhile; a condition that does not hold within
`HEAL_WITHIN_MS`, once all processes have started, ends the soak with a finding. A cluster that the soak has started has
its processes on this machine; one that runs already (`running.py`) has a supervisor, to which signals go.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from experiments.engines.admin_requests import create_topic, delete_topic
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import PolledEngine
from experiments.hunt.soak.ray_nodes import RayNodes
from experiments.hunt.soak.workload import Workload
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import StorageFailed
from protocol.ids import NO_LEADER, BrokerId, NodeId, TopicPartition, is_broker
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.metadata.partition import PartitionState

TOPIC = "soak"
HEAL_WITHIN_MS, START_WITHIN_MS = 120_000, 600_000
CHECK_EVERY_MS = 250
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_Found = TypeVar("_Found")


class NotHealedError(RuntimeError):
    """A condition did not hold in time."""


def homes_of(spec: ClusterSpec, nodes: RayNodes) -> dict[NodeId, str]:
    """The Ray node of each node: one for each broker, and the head, which no fault kills, for all others."""
    return dict.fromkeys(spec.member_ids, nodes.head) | dict(zip(spec.broker_ids, nodes.workers, strict=False))


class SoakCluster:
    """A cluster on Ray under test. `homes` is the present Ray node of each node; `pids` are the processes as of the
    last `await_whole`; `rss` collects the resident bytes of each node's processes every two seconds; `next_id` gives
    new command ids.
    """

    def __init__(
        self, engine: PolledEngine[Any], nodes: RayNodes | None, homes: dict[NodeId, str], topic: str = TOPIC
    ) -> None:
        self.engine = engine
        self.topic = topic
        self.nodes = nodes
        self.homes = homes
        self.brokers, self.controllers = engine.spec.broker_ids, engine.spec.controller_ids
        self.pids: dict[NodeId, int] = {}
        self.partitions: tuple[TopicPartition, ...] = ()
        self.rss: dict[NodeId, list[int]] = {}
        self.workload: Workload | None = None
        self.next_id = count(1).__next__
        self._next_sample_ms = 0

    def controller(self) -> NodeId:
        """The active controller. Waits for one, since a stalled machine alone can cause an election."""

        def active() -> NodeId | None:
            found = self.engine.active_controller()
            return found if found is not None and self.engine.is_running(found) else None

        return self.wait_for(active, "a controller is active")

    def wait(self, condition: Callable[[], bool], what: str, within_ms: int = HEAL_WITHIN_MS) -> None:
        """Runs the workload until the condition `what` holds. NotHealedError where it does not hold in time."""
        next_check_ms = 0

        def check() -> bool:
            nonlocal next_check_ms
            self._tick()
            now_ms = self.engine.now_ms()
            if now_ms < next_check_ms:
                return False
            next_check_ms = now_ms + CHECK_EVERY_MS
            return condition()

        if not self.engine.run_until(check, within_ms):
            raise NotHealedError(f"{what}: not within {within_ms / 1000:.0f} s")

    def wait_for(self, find: Callable[[], _Found | None], what: str) -> _Found:
        """Runs the workload until `find` has a result other than None; returns it. NotHealedError as `wait`."""
        found: _Found | None = None

        def is_found() -> bool:
            nonlocal found
            found = find()
            return found is not None

        self.wait(is_found, what)
        assert found is not None
        return found

    def pass_time(self, duration_ms: int) -> None:
        end_ms = self.engine.now_ms() + duration_ms
        self.wait(lambda: self.engine.now_ms() >= end_ms, "time passes", duration_ms + HEAL_WITHIN_MS)

    def _tick(self) -> None:
        if self.workload is not None:
            self.workload.tick()
        now_ms = self.engine.now_ms()
        if now_ms >= self._next_sample_ms:
            self._next_sample_ms = now_ms + 2_000
            for node, pid in self.pids.items():
                if size := rss_of(pid):
                    self.rss.setdefault(node, []).append(size)

    def state(self, partition: TopicPartition) -> PartitionState | None:
        view = self.engine.view()
        return None if view is None else view.partitions.get(partition)

    def leader(self, partition: TopicPartition) -> BrokerId:
        """The leader of a partition. Waits for one, since a stalled machine alone can cause a session to expire."""

        def leader() -> BrokerId | None:
            state = self.state(partition)
            return None if state is None or state.leader == NO_LEADER else state.leader

        return self.wait_for(leader, f"{partition} has a leader")

    def listeners(self) -> str:
        """The addresses of the brokers' listeners, as Kafka's clients take them, once every broker has one."""

        def found() -> str | None:
            view = self.engine.view()
            addresses = [] if view is None else [view.brokers[broker].endpoint for broker in self.brokers]
            return ",".join(map(str, addresses)) if addresses and all(addresses) else None

        return self.wait_for(found, "every broker listens")

    def is_whole(self) -> bool:
        """Whether all nodes run, the quorum and all brokers are in service, and every ISR has all replicas, which know
        its leader. Of a broker that has just restarted the controller has the registration of the incarnation before,
        until the session of that has ended; the broker itself leads and follows nothing until it is registered.
        """
        view = self.engine.view()
        if view is None or not all(map(self.engine.is_running, self.engine.spec.node_ids)):
            return False
        roles = [part.role for part in self.engine.quorum().values()]
        if len(roles) < len(self.controllers) or not set(roles) <= {"leader", "follower"}:
            return False
        states, replicas = [view.partitions.get(partition) for partition in self.partitions], len(self.brokers)
        return view.unfenced.issuperset(self.brokers) and all(
            state is not None and len(state.isr) == replicas and self._is_followed(partition, state)
            for partition, state in zip(self.partitions, states, strict=True)
        )

    def _is_followed(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Whether all brokers have replicas of the partition in its leader epoch, of which that of its leader leads."""
        views = {broker: self.engine.replica(broker, partition) for broker in self.brokers}
        return all(
            view is not None and view.leader_epoch == state.leader_epoch and view.leads == (broker == state.leader)
            for broker, view in views.items()
        )

    def await_whole(self) -> None:
        """Waits until all nodes answer, then until the cluster is whole, and updates `pids`. How long a process takes
        to start depends on what else the machine does; the cluster has `HEAL_WITHIN_MS` from then on.
        """
        nodes = self.engine.spec.node_ids
        self.wait(lambda: self.engine.answering().issuperset(nodes), "all nodes answer", START_WITHIN_MS)
        self.wait(self.is_whole, "the cluster is whole")
        self.pids = dict(self.engine.cluster.pids())

    def count_traces(self, kind: type[Trace], node: NodeId) -> int:
        return sum(isinstance(event.trace, kind) and event.node == node for event in self.engine.traces())

    def create_topic(self, partitions: int) -> None:
        """Creates the topic of the soak with rotated replica lists. NotHealedError where the controller refuses."""
        brokers = self.brokers
        rotated = [brokers[index % len(brokers) :] + brokers[: index % len(brokers)] for index in range(partitions)]
        request = create_topic(self.topic, rotated, {"min.insync.replicas": len(brokers) - 1})
        self._administer(request, "the topic is created")
        self.partitions = tuple(TopicPartition(self.topic, index) for index in range(partitions))

    def delete_topic(self) -> None:
        """Deletes the topic of the soak. NotHealedError where the controller refuses."""
        self.partitions = ()
        self._administer(delete_topic(self.topic), "the topic is deleted")

    def _administer(self, request: AdminRequest, what: str) -> None:
        command = AdminCommand(command_id=self.next_id(), request=request)
        self.engine.submit(command)
        outcome = self.wait_for(lambda: self._taken(command.command_id), what)
        if not isinstance(outcome, AdminOutcome) or outcome.error is not ErrorCode.NONE:
            raise NotHealedError(f"not so: {what}: {outcome}")

    def _taken(self, command_id: int) -> Message | None:
        """The outcome of a command, which the workload may have taken with others."""
        outcome = self.engine.outcome(command_id)
        return outcome if outcome is not None or self.workload is None else self.workload.others.pop(command_id, None)

    def has_reported_full_disk(self, broker: BrokerId, before: int) -> bool:
        """Whether a broker has reported a failure of its disk since it had reported `before` of them."""
        return self.count_traces(StorageFailed, broker) > before

    def signal(self, node: NodeId, number: signal.Signals) -> None:
        os.kill(self.pids[node], number)

    def kill(self, nodes: Sequence[NodeId]) -> None:
        """Sends SIGKILL to nodes; returns when Ray has noticed that their processes have ended."""
        for node in nodes:
            self.signal(node, signal.SIGKILL)
        self.wait(lambda: not any(map(self.engine.is_running, nodes)), f"{list(nodes)} are gone")

    def start(self, nodes: Sequence[NodeId]) -> None:
        """Starts nodes that do not run; returns before they are up."""
        for node in nodes:
            self.engine.start(node)

    def memory(self) -> dict[str, dict[str, int]]:
        """The largest and the last measured resident bytes of each broker, over all its incarnations."""
        sizes = {node: sizes for node, sizes in sorted(self.rss.items()) if is_broker(node)}
        return {str(node): {"max_bytes": max(found), "last_bytes": found[-1]} for node, found in sizes.items()}


def rss_of(pid: int) -> int:
    """Resident bytes of a process, 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0
