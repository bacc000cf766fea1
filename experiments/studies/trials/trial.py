"""One trial of a study: a simulated cluster that goes through a timeline of failures for a period of virtual time.

`design/model.py` describes the model, `failures/timeline.py` the failures, `observer.py` the workload and the
observations. The result is a trace (`trace/schema.py`).

With a stationary start the timeline begins before time 0, and so does the simulated cluster: brokers that are down then
crash as soon as the topic exists, and the rows of the warm-up are not recorded. At time 0 a `state` row describes each
partition.
"""

from __future__ import annotations

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss, LossKind
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.memory import rare_collections
from experiments.engines.sim.network import NetworkModel
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import assignments
from experiments.studies.failures.slow import episodes
from experiments.studies.failures.timeline import DrawnTimeline, Event, Timeline, warm_up_ms
from experiments.studies.trace.schema import CRASH, END, START, TraceRow, TrialResult
from experiments.studies.trials.catch_up import CatchUps
from experiments.studies.trials.observer import Observer
from experiments.studies.trials.slow import SlowBrokers
from experiments.studies.trials.states import TOPIC
from protocol.config import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    FLUSH_MS,
    MIN_INSYNC_REPLICAS,
    UNCLEAN_RECOVERY_STRATEGY,
    ClusterConfig,
    Generation,
)
from protocol.ids import FIRST_CLIENT, NodeId, TimeMs, TopicPartition
from protocol.messages.commands import AdminCommand, ShutdownCommand

SET_UP_MS = 60_000
RETRY_START_MS = 1_000
_LOSSES: dict[str, LossKind] = {"unclean": "none", "lossy": "unflushed", "disk": "all"}


class TrialSetUpError(RuntimeError):
    """The cluster of a trial did not come up."""


class Trial:
    """State and callbacks of one trial on `timeline`."""

    def __init__(self, params: CellParameters, seed: int, timeline: Timeline) -> None:
        self.params = params
        self.cluster = SimCluster(
            ClusterSpec(params.brokers, 1, _cluster_config(params), seed),
            NetworkModel(base_ms=params.network_latency_ms),
            keep_traces=False,
            instant_detection=params.detection_ms is None,
        )
        self.rows: list[TraceRow] = []
        self.observer = Observer(params, self.cluster, self._add, self._handle_settled)
        self._timeline = timeline
        self._zero_ms: TimeMs = 0
        self._measuring = False
        self._awaited: Event | None = None
        self._starting: dict[NodeId, Event] = {}
        self.catch_ups = None if params.catch_up is None else CatchUps(params.catch_up, self.cluster, _replicas(params))
        self._seed = seed

    def run(self) -> TrialResult:
        """Runs the trial to its end."""
        cluster, duration_ms = self.cluster, self.params.duration_ms
        self.set_up()
        self._zero_ms = cluster.now_ms + warm_up_ms(self.params)
        self.observer.begin_writing()
        self._await_event()
        self._await_episodes()
        cluster.run_until(self._zero_ms)
        self._measuring = True
        self.observer.states.add_all()
        cluster.run_until(self._zero_ms + duration_ms)
        self._add(TraceRow(0, END))
        return TrialResult(self.rows, cluster.trace_hash(), cluster.event_count)

    def set_up(self) -> None:
        """Starts the cluster and creates the topic. Raises TrialSetUpError if a partition gets no leader."""
        cluster, params = self.cluster, self.params
        for node in cluster.spec.node_ids:
            cluster.start(node)
        cluster.run_until(1_000)
        request = create_topic(TOPIC, assignments(params), {MIN_INSYNC_REPLICAS: params.min_insync_replicas})
        cluster.command(FIRST_CLIENT, AdminCommand(command_id=self.observer.command_id(), request=request))
        while not all(partition.serves for partition in self.observer.states.partitions.values()):
            if not cluster.step(SET_UP_MS):
                raise TrialSetUpError(f"no leaders after {SET_UP_MS} ms: {params}")

    # -- failures ------------------------------------------------------------------------------------------------------

    def _await_event(self) -> None:
        event = self._awaited = self._timeline.next_event()
        if event is not None:
            self.cluster.call_at(self._zero_ms + event.time_ms, lambda: self._handle_event(event))

    def _await_episodes(self) -> None:
        slow, begins_ms = self.params.slow, -warm_up_ms(self.params)
        if slow is not None:
            found = episodes(slow, self.params, self._seed, begins_ms)
            write = self.observer.write_all
            SlowBrokers(self.cluster, found, slow.delay_ms, self._zero_ms, write).await_next()

    def _handle_event(self, event: Event) -> None:
        """Injects the event, unless the timeline has drawn another one since."""
        if event is not self._awaited:
            return
        if event.kind == "start":
            self._starting[event.broker] = event
            self._start(event)
        else:
            self._starting.pop(event.broker, None)
            self._fail(event)
        self._await_event()

    def _fail(self, event: Event) -> None:
        """Ends the broker's process. If none runs, the failure acts on its disk only."""
        broker = event.broker
        if self.catch_ups is not None:
            self.catch_ups.fail(broker, event.kind == "disk")
        if broker not in self.cluster.nodes:
            if event.kind != "clean":
                self.cluster.disks[broker].apply_loss(Loss(_LOSSES[event.kind]))
            return
        self._add(TraceRow(0, CRASH, node=broker, detail=event.kind))
        if event.kind == "clean":
            self.cluster.command(broker, ShutdownCommand())
        else:
            self.cluster.crash(broker, Loss(_LOSSES[event.kind]))
            self.observer.states.handle_crash(self.cluster.now_ms, broker)

    def _start(self, event: Event) -> None:
        """Starts the broker, as soon as its controlled shutdown has ended and unless it has failed again."""
        broker = event.broker
        if self._starting.get(broker) is not event:
            return
        if broker in self.cluster.nodes:
            self.cluster.call_at(self.cluster.now_ms + RETRY_START_MS, lambda: self._start(event))
            return
        del self._starting[broker]
        self._add(TraceRow(0, START, node=broker))
        if self.catch_ups is not None:
            self.catch_ups.start(broker)
        self.cluster.start(broker)

    def _handle_settled(self) -> None:
        """A write has ended that no other follows."""

    # -- trace ---------------------------------------------------------------------------------------------------------

    @property
    def time_ms(self) -> TimeMs:
        """Virtual time since the measurement began; negative in the warm-up."""
        return self.cluster.now_ms - self._zero_ms

    def _add(self, row: TraceRow) -> None:
        if self._measuring:
            time_ms = self.time_ms
            self.rows.append(row._replace(time_ms=time_ms, log_weight=self._timeline.log_weight(time_ms)))


def _replicas(params: CellParameters) -> dict[NodeId, set[TopicPartition]]:
    """The partitions of which each broker has a replica."""
    placed = assignments(params)
    return {
        broker: {TopicPartition(TOPIC, index) for index, replicas in enumerate(placed) if broker in replicas}
        for broker in range(params.brokers)
    }


def _cluster_config(params: CellParameters) -> ClusterConfig:
    """The brokers' configs that follow from the parameters."""
    overrides: dict[str, object] = {UNCLEAN_RECOVERY_STRATEGY: params.unclean_recovery_strategy}
    if params.detection_ms is not None:
        overrides[BROKER_SESSION_TIMEOUT_MS] = params.detection_ms
        overrides[BROKER_HEARTBEAT_INTERVAL_MS] = params.heartbeat_interval_ms
    if params.flush_interval_ms is not None:
        overrides[FLUSH_MS] = params.flush_interval_ms
    return ClusterConfig.of(Generation(params.generation), overrides)


def run_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial in plain sampling; a pure function of its arguments."""
    with rare_collections():
        return Trial(params, seed, DrawnTimeline(params, seed, -warm_up_ms(params))).run()
