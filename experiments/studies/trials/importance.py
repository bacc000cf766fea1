"""A trial in importance sampling: one simulated cluster that goes through many regeneration cycles.

The biased timeline (`failures/biased.py`) multiplies likelihood ratios. Over a long trial their product would
degenerate, so the trial is cut into cycles, each of which begins with weight 1. That is valid at a *regeneration
point*, from which on the future has the same distribution whatever happened before. Such a point is the end of a write
if

1. every broker runs, and the timeline has no broker down or behind, and no outage due;
2. every partition has a leader that serves, all its replicas in the ISR, an empty ELR and last known ELR, no recovery
   pending, and no failover that clients wait for;
3. no write is in flight, and the logs of all replicas of a partition end with the last acknowledged record.

What the future depends on: the failures to come, and what the protocol makes of them. By (1), and because failures come
at constant rates, the former have one distribution. The protocol decides by the sets in (2), by which replica holds
which acknowledged records, and by what a crash takes away. By (3) all replicas hold the same records, and a record is
acknowledged just before each failure. So the next lossy crash takes the last acknowledged record from its broker,
whatever happened before. Epochs, offsets and ids only count on. What remains of an earlier cycle:

- *Which replica leads.* All replicas have the same log and the same role in the ISR, and all brokers fail at the same
  rates, by themselves and with their rack. So the distribution of what happens to the partition is the same for every
  leader: exchange the failures to come of the leader and another replica, and the elections exchange them, too.
- *Which partitions share a leader.* No partition's own future depends on it, and expectations of sums over partitions
  need no more. Variances are taken over trials, not over cycles.
- *How many records a crash takes.* A lossy crash takes all records that are neither flushed nor written back. A loss
  counts the records of the present cycle only: a lower bound on `lost_records_per_year`. Whether there is a loss does
  not depend on it.
- *Messages on their way*, such as a high watermark, for some milliseconds, in which a failure has a probability of
  1e-9 at realistic rates.

At a regeneration, and at the failure that begins a cycle, a `state` row for every partition ends the intervals, so that
the long ones between cycles have weight 1. A trial ends in the regeneration state: at `duration` or, if a cycle is
under way then, at its end; and not before it has had `LEAST_CYCLES` cycles. The number of cycles is thus a stopping
time, and by Wald's identity weighted counts and weighted exposure have the ratio of their means per cycle: the long-run
rate.
"""

from __future__ import annotations

from experiments.engines.sim.memory import rare_collections
from experiments.studies.design.estimator import LEAST_CYCLES
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import assignments
from experiments.studies.failures.biased import BiasedTimeline
from experiments.studies.failures.timeline import Event
from experiments.studies.trace.kinds import End, Loss, Observation, TrialResult
from experiments.studies.trials.setting import SET_UP_MS
from experiments.studies.trials.trial import Trial
from protocol.ids import NO_LEADER, NodeId, TopicPartition
from protocol.nodes.broker import BrokerNode

RECHECK_MS = 1_000
LONGEST_CYCLE_ABSENCES = 1_000


class NoRegenerationError(Exception):
    """A cluster did not come back to a regeneration point."""


class RegenerativeTrial(Trial):
    """State and callbacks of one trial in cycles; `bias`: False draws failures from the model itself."""

    def __init__(self, params: CellParameters, seed: int, bias: bool = True) -> None:
        self._placement = assignments(params)
        self._cycles = BiasedTimeline(params, seed, self._placement, bias)
        super().__init__(params, seed, self._cycles)
        self._in_cycle = True
        self._completed = -1
        """Cycles that are complete; the set-up ends like a cycle, and is none."""

    def run(self) -> TrialResult:
        cluster = self.cluster
        self.set_up()
        self.observer.begin_writing()
        self._finish_cycle()
        self._measuring, self._zero_ms = True, cluster.now_ms
        self.observer.begin_measuring()
        self._await_event()
        cluster.run_until(self._zero_ms + self.params.duration_ms)
        self._finish_cycle()
        while self._completed < LEAST_CYCLES and self._begin_cycle():
            self._finish_cycle()
        self._add(End())
        return TrialResult(self.rows, cluster.trace_hash(), cluster.event_count, unseen=self.unseen)

    def _begin_cycle(self) -> bool:
        """Runs until a failure begins the next cycle; returns whether one does."""
        while not self._in_cycle and self._awaited is not None:
            self.cluster.step(self._zero_ms + self._awaited.time_ms)
        return self._in_cycle

    def _finish_cycle(self) -> None:
        """Runs until the regeneration point that ends the present cycle, if one is under way."""
        limit_ms = self.cluster.now_ms + SET_UP_MS + LONGEST_CYCLE_ABSENCES * self.params.longest_absence_ms
        while self._in_cycle:
            if not self.cluster.step(limit_ms):
                raise NoRegenerationError(f"no regeneration point within {limit_ms} ms")

    def _handle_event(self, event: Event) -> None:
        if event is not self._awaited:
            return
        if not self._in_cycle:
            self.observer.states.add_all()
            self._in_cycle = True
        if event.kind == "mark":
            self._await_event()
        else:
            super()._handle_event(event)
        if event.kind in ("start", "mark"):
            self._check_later()

    def _handle_settled(self) -> None:
        self._regenerate()
        if self._in_cycle and self._cycles.all_up:
            self._check_later()

    def _check_later(self) -> None:
        """Looks again, for what no write follows: the start of a broker without replicas."""
        wait_ms = RECHECK_MS + self.params.restart_time_ms
        self.cluster.call_at(self.cluster.now_ms + wait_ms, self._regenerate)

    def _regenerate(self) -> None:
        """Ends the cycle if this is a regeneration point."""
        nodes, brokers = self.cluster.nodes, self.cluster.spec.broker_ids
        if not (self._in_cycle and self._cycles.all_up and all(broker in nodes for broker in brokers)):
            return
        if not all(map(self._is_restored, self.observer.states.partitions)):
            return
        if self._measuring:
            self.observer.states.add_all()
            self._cycles.regenerate(self.time_ms)
            self._await_event()
        self._in_cycle = False
        self._completed += 1
        self.observer.forget_records()

    def _is_restored(self, name: TopicPartition) -> bool:
        """Whether conditions 2 and 3 hold for the partition."""
        state, writes = self.observer.states.partitions[name], self.observer.writer.writes[name]
        if state.leader == NO_LEADER or not state.serves or state.recovering or state.crashed is not None:
            return False
        if state.isr_size < self.params.replication_factor or state.elr_size or state.last_known_elr_size:
            return False
        if writes.outstanding is not None or writes.due_ms is not None or state.waiting_since_ms is not None:
            return False
        return len({self._log_end(name, broker) for broker in self._placement[name.partition]}) == 1

    def _log_end(self, name: TopicPartition, broker: NodeId) -> int:
        node = self.cluster.nodes[broker]
        assert isinstance(node, BrokerNode)
        replica = node.context.replica_named(name.topic, name.partition)
        return -1 if replica is None else replica.log.storage.end_offset

    def _log_weight(self) -> float:
        """0 in the regeneration state: nothing is biased before the failure that ends it."""
        return super()._log_weight() if self._in_cycle else 0.0

    def _add(self, what: Observation) -> None:
        super()._add(what)
        if isinstance(what, Loss):
            self._cycles.end_bias()


def run_importance_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial in importance sampling; a pure function of its arguments. Raises NoRegenerationError if a cycle
    takes longer than `LONGEST_CYCLE_ABSENCES` mean times for which a failure keeps a replica out of sync."""
    with rare_collections():
        return RegenerativeTrial(params, seed).run()
