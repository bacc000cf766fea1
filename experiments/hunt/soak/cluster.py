"""The cluster of a soak and what faults do with it: signals to processes, waits, and the sign that all is well again.

Everything waits for conditions, with the load going on meanwhile; a condition that does not come true within
`HEAL_WITHIN_MS` ends the soak with a finding. Signals are real ones, to process ids of this machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine
from experiments.hunt.soak.ray_nodes import RayNodes
from experiments.hunt.workload import Workload
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, BrokerId, NodeId, TopicPartition, is_broker
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.metadata.partition import PartitionState

TOPIC = "soak"
HEAL_WITHIN_MS = 120_000
LOOK_EVERY_MS = 250
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NotHealedError(RuntimeError):
    """Something that is waited for did not come true in time."""


def homes_of(spec: ClusterSpec, nodes: RayNodes) -> dict[NodeId, str]:
    """On which Ray node each node lives: brokers on one each, and all others on the head, which no fault takes away."""
    return dict.fromkeys(spec.member_ids, nodes.head) | dict(zip(spec.broker_ids, nodes.workers, strict=False))


class SoakCluster:
    """See the module docstring. `homes` says on which Ray node each node lives; it changes with the machines."""

    def __init__(self, engine: RayEngine, nodes: RayNodes, homes: dict[NodeId, str]) -> None:
        self.engine = engine
        self.nodes = nodes
        self.homes = homes
        self.pids: dict[NodeId, int] = {}
        self.partitions: tuple[TopicPartition, ...] = ()
        self.rss: dict[NodeId, list[int]] = {}
        self.load: Workload | None = None
        self._ids = count(1)
        self._next_sample_ms = 0
        self._replicas = len(engine.spec.broker_ids)

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        return self.engine.spec.broker_ids

    @property
    def controllers(self) -> tuple[NodeId, ...]:
        return self.engine.spec.controller_ids

    def controller(self) -> NodeId:
        """The active controller; it is waited for, since a machine that stalls holds elections by itself."""
        found: list[NodeId] = []

        def is_active() -> bool:
            active = self.engine.active_controller()
            if active is not None and self.engine.is_running(active):
                found.append(active)
            return bool(found)

        self.wait(is_active, "a controller is active")
        return found[0]

    def next_id(self) -> int:
        """A command id that was not used before."""
        return next(self._ids)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str, within_ms: int = HEAL_WITHIN_MS) -> None:
        """Lets time pass, with the load going on, until the condition holds. NotHealedError where it does not."""
        look_at_ms = 0

        def looked() -> bool:
            nonlocal look_at_ms
            self._tick()
            now_ms = self.engine.now_ms()
            if now_ms < look_at_ms:
                return False
            look_at_ms = now_ms + LOOK_EVERY_MS
            return condition()

        if not self.engine.run_until(looked, within_ms):
            raise NotHealedError(f"{what}: not within {within_ms / 1000:.0f} s")

    def pass_time(self, duration_ms: int) -> None:
        """Lets time pass, with the load going on."""
        end_ms = self.engine.now_ms() + duration_ms
        self.wait(lambda: self.engine.now_ms() >= end_ms, "time passes", duration_ms + HEAL_WITHIN_MS)

    def _tick(self) -> None:
        if self.load is not None:
            self.load.tick()
        now_ms = self.engine.now_ms()
        if now_ms >= self._next_sample_ms:
            self._next_sample_ms = now_ms + 2_000
            for node, pid in self.pids.items():
                size = rss_of(pid)
                if size:
                    self.rss.setdefault(node, []).append(size)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self, partition: TopicPartition) -> PartitionState | None:
        view = self.engine.view()
        return None if view is None else view.partitions.get(partition)

    def leader(self, partition: TopicPartition) -> BrokerId:
        """The leader of a partition; it is waited for, since a machine that stalls expires sessions by itself."""
        leaders: list[BrokerId] = []

        def is_led() -> bool:
            state = self.state(partition)
            if state is not None and state.leader != NO_LEADER:
                leaders.append(state.leader)
            return bool(leaders)

        self.wait(is_led, f"{partition} has a leader")
        return leaders[0]

    def is_whole(self) -> bool:
        """Whether all nodes run, all controllers lead or follow, all brokers are unfenced, and every partition has all
        replicas in its ISR.
        """
        view = self.engine.view()
        if view is None or not all(map(self.engine.is_running, self.engine.spec.node_ids)):
            return False
        roles = [part.role for part in self.engine.quorum().values()]
        if len(roles) < len(self.controllers) or not set(roles) <= {"leader", "follower"}:
            return False
        if not view.unfenced.issuperset(self.brokers):
            return False
        states = [view.partitions.get(partition) for partition in self.partitions]
        return all(
            state is not None and state.leader != NO_LEADER and len(state.isr) == self._replicas for state in states
        )

    def heal(self) -> None:
        """Waits until the cluster is whole, and learns the process ids of its nodes anew."""
        self.wait(self.is_whole, "the cluster is whole")
        self.pids = dict(self.engine.pids())

    def count_traces(self, kind: str, node: NodeId) -> int:
        """How many trace events of a kind a node has told."""
        return sum(event.trace.kind == kind and event.node == node for event in self.engine.traces())

    def create_topic(self, partitions: int) -> None:
        """The topic of the soak; each broker leads its share. NotHealedError where the controller refuses."""
        brokers = self.brokers
        turns = [brokers[index % len(brokers) :] + brokers[: index % len(brokers)] for index in range(partitions)]
        request = create_topic(TOPIC, turns, {"min.insync.replicas": len(brokers) - 1})
        command = AdminCommand(command_id=self.next_id(), request=request)
        self.engine.submit(command)
        self.wait(lambda: self.engine.outcome(command.command_id) is not None, "the topic is created")
        outcome = self.engine.outcome(command.command_id)
        if not isinstance(outcome, AdminOutcome) or outcome.error is not ErrorCode.NONE:
            raise NotHealedError(f"the topic is not created: {outcome}")
        self.partitions = tuple(TopicPartition(TOPIC, index) for index in range(partitions))

    # -- what faults do ------------------------------------------------------------------------------------------------

    def signal(self, node: NodeId, number: signal.Signals) -> None:
        """Sends a signal to a node's process."""
        os.kill(self.pids[node], number)

    def kill(self, nodes: Sequence[NodeId]) -> None:
        """SIGKILL; returns when Ray has seen the processes die."""
        for node in nodes:
            self.signal(node, signal.SIGKILL)
        self.wait(lambda: not any(map(self.engine.is_running, nodes)), f"{list(nodes)} are gone")

    def start(self, nodes: Sequence[NodeId]) -> None:
        """Starts nodes that do not run."""
        for node in nodes:
            self.engine.start(node)

    def memory(self) -> dict[str, dict[str, int]]:
        """Resident bytes of each broker's process: the most, and the last, that were seen in its present life and
        those before.
        """
        sizes = {node: sizes for node, sizes in sorted(self.rss.items()) if is_broker(node)}
        return {str(node): {"max_bytes": max(found), "last_bytes": found[-1]} for node, found in sizes.items()}


def rss_of(pid: int) -> int:
    """Resident bytes of a process, 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0
