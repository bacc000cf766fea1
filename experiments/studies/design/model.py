"""The parameters of a cell, each declared once, as a field of :class:`CellParameters` (`parameter.py`).

Values are resolved: durations are whole milliseconds, `instant` and `never` are None, every parameter has a value. A
trial depends on its cell's parameters and its seed, and on nothing else; on processes, on the operating system's
scheduling too. docs/failure-models.md describes the model, docs/contributing/a-study-parameter.md how to add a
parameter. With the defaults, small clusters are Markov chains, whose answers a study must reproduce (`theory/`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from experiments.studies.design.cluster import CLUSTER, Cluster
from experiments.studies.design.distribution import DISTRIBUTION, Distribution, RandomTime
from experiments.studies.design.impairments import (
    IMPAIRMENTS,
    MOST_PER_YEAR,
    SLOW_DISK,
    AnyImpairment,
    Isolations,
    Pauses,
    PowerCauses,
    SlowDisks,
)
from experiments.studies.design.mappings import (
    Bursts,
    CatchUp,
    Reassignments,
    RollingRestart,
    SlowEpisodes,
    mapping_or,
)
from experiments.studies.design.parameter import parameter, parameters
from experiments.studies.design.presets import PRESETS, PresetName
from experiments.studies.design.recorded import RECORDED, RecordedFailures
from experiments.studies.trace.schema import YEAR_MS as YEAR_MS
from experiments.support.durations import format_duration
from experiments.support.errors import WrongField
from experiments.support.fields import (
    DURATION,
    NO_RELEASE,
    NOT_ON_THE_WIRE,
    PLAIN,
    TEXT,
    DurationMs,
    Finite,
    PositiveMs,
    ReleaseName,
    WrittenModel,
    word_or,
)
from protocol.kafka_release import NEWEST

DAY_MS = 86_400_000
MINUTE_MS = 60_000
LONGEST_PROCESS_TRIAL_MS = 3_600_000
"""The longest real time of a trial on processes, without its warm-up."""

Probability = Annotated[Finite, Field(ge=0.0, le=1.0)]
EventsPerYear = Annotated[Finite, Field(ge=0.0, le=MOST_PER_YEAR)]


class CellParameters(WrittenModel):
    """Everything that a trial depends on, except its seed. Each field declares one parameter of study files."""

    preset: PresetName = parameter(
        "none",
        "preset {}",
        "Failure model by name, which sets other parameters (docs/failure-models.md); values that the study gives "
        "override it.",
    )
    generation: Annotated[Literal["v3", "kip-497", "kip-966-elr", "kip-966"], NO_RELEASE] = parameter(
        "kip-966-elr", "{}", "Protocol generation of the cluster; the default is what Kafka 4.1 and later run."
    )
    kafka_release: ReleaseName = parameter(
        NEWEST.value,
        "Kafka {}",
        "Release of Kafka whose rules hold in `kip-497` and `kip-966-elr` (docs/generations.md); it changes nothing in "
        "the other generations.",
        "release",
    )
    brokers: int = parameter(3, "{} brokers", "Number of brokers in the cluster.", "brokers", ge=1, le=999)
    partitions: int = parameter(1, "{} partitions", "Number of partitions of the one topic.", "partitions", ge=1)
    replication_factor: int = parameter(3, "RF {}", "Replicas per partition; at most the brokers.", "replicas", ge=1)
    min_insync_replicas: int = parameter(2, "min ISR {}", "`min.insync.replicas` of the topic.", "replicas", ge=1)
    unclean_recovery_strategy: Literal["proactive", "balanced", "manual"] = parameter(
        "balanced",
        "{} recovery",
        "`unclean.recovery.strategy` of the cluster (`kip-966`). In `kip-497` and `kip-966-elr` it stands for "
        "`unclean.leader.election.enable`: `proactive` for true, `balanced` for false; they have no `manual`. In `v3` "
        "any live replica is elected.",
    )
    acks: Annotated[Literal["0", "1", "all"], TEXT, NOT_ON_THE_WIRE] = parameter(
        "all",
        "acks={}",
        "Copies that the producer waits for; `loss_rate` counts losses with `all`, `acks_1_loss_rate` with 1, "
        "`acknowledged_loss_rate` both.",
    )
    consumer: Literal["none", "polling"] = parameter(
        "none",
        "{} consumer",
        "`polling`: a consumer of each partition reads every record as soon as it can; `silver/reads` has its reads. "
        "It changes no estimate.",
    )
    broker_mttf: Annotated[Distribution | None, word_or("never", DISTRIBUTION)] = parameter(
        Distribution(mean_ms=130 * DAY_MS),
        "MTTF {}",
        "Time from a broker's start to its next failure of its own; `never`: only shared causes end brokers.",
    )
    broker_mttr: RandomTime = parameter(
        Distribution(mean_ms=15 * MINUTE_MS), "MTTR {}", "Time from a broker's failure to its restart."
    )
    unclean_probability: Probability = parameter(
        1.0, "unclean {}", "That a failure is a crash without a clean-shutdown file.", "probability"
    )
    tail_loss_probability: Probability = parameter(
        0.1, "tail loss {}", "That an unclean crash loses the unflushed tail of the logs.", "probability"
    )
    disk_loss_probability: Probability = parameter(
        0.0,
        "disk loss {}",
        "That an unclean failure of a broker loses its disk: it restarts with an empty one.",
        "probability",
    )
    detection_ms: Annotated[PositiveMs | None, word_or("instant", DURATION)] = parameter(
        9_000,
        "detection {}",
        "Broker session timeout, after which the controller fences a silent broker; `instant`: the simulator reports a "
        "crash to the controller at once.",
    )
    flush_interval_ms: Annotated[PositiveMs | None, word_or("never", DURATION)] = parameter(
        None, "flush {}", "`flush.ms` of the brokers: how long a record may stay unflushed."
    )
    writeback_ms: Annotated[PositiveMs | None, word_or("never", DURATION)] = parameter(
        30_000,
        "writeback {}",
        "Age at which the kernel has written a record from the page cache to the disk (Linux: "
        "`vm.dirty_expire_centisecs`), so that a crash of the machine does not lose it; `never`: only flushes and "
        "clean shutdowns do.",
    )
    delivery_timeout_ms: DurationMs = parameter(
        120_000,
        "delivery timeout {}",
        "`delivery.timeout.ms` of the producers: a partition is writable if a write begun now is acknowledged within "
        "this time.",
        gt=0,
    )
    racks: int = parameter(
        1, "{} racks", "Number of racks or zones; broker b is in rack b modulo `racks`.", "racks", ge=1
    )
    placement: Literal["spread", "together"] = parameter(
        "spread",
        "replicas {}",
        "`spread`: a partition's replicas are in as many racks as possible; `together`: in as few as possible.",
    )
    cluster: Annotated[Cluster | None, CLUSTER] = parameter(
        None,
        "cluster of {}",
        "A whole cluster instead of `brokers`, `racks`, `placement` and one topic (docs/studies.md): topics with their "
        "own partitions, RF, min ISR and acks, racks by name, replicas as a file or a rule places them. What a topic "
        "does not give comes from the parameters of those names.",
        "mapping",
    )
    power_events_per_year: EventsPerYear = parameter(
        0.0,
        "{} power events/y",
        "Rate of the Poisson process of events that crash all brokers of the cluster unclean at once.",
        "events per cluster-year",
    )
    rack_power_events_per_year: EventsPerYear = parameter(
        0.0,
        "{} rack power events/y",
        "Rate, per rack, of the Poisson process of events that crash all brokers of a rack unclean at once.",
        "events per rack-year",
    )
    power_loss_probability: Annotated[Probability | None, word_or("tail_loss_probability", PLAIN, "a number")] = (
        parameter(
            None,
            "power loss {}",
            "That a power event, of the cluster or a rack, loses the unflushed tail of a broker's logs.",
            "probability",
        )
    )
    power_mttr: Annotated[Distribution | None, word_or("broker_mttr", DISTRIBUTION)] = parameter(
        None,
        "power MTTR {}",
        "Time for which a power event of the cluster keeps all brokers down; `broker_mttr`: each has its own.",
    )
    rack_power_mttr: Annotated[Distribution | None, word_or("broker_mttr", DISTRIBUTION)] = parameter(
        None, "rack power MTTR {}", "The same for a power event of a rack."
    )
    burst: Bursts = parameter(
        (),
        "bursts: {}",
        "Bursts: each strikes `size` random brokers (at most `brokers`), or each broker with probability `fraction`; "
        "with probability `same_rack`, only brokers of one random rack. They fail at random times within `window` "
        "(default 2m). `down`: one down time for all, otherwise `broker_mttr`.",
        "mapping",
    )
    rolling_restart: Annotated[
        RollingRestart | None,
        mapping_or("none", "{every: DURATION, down: DURATION, pause: DURATION}"),
    ] = parameter(
        None,
        "rolling restarts: {}",
        "Every so often, a controlled shutdown of each broker in turn, for `down`; `pause` (default 1m) lies between a "
        "broker's start and the next shutdown.",
        "mapping",
    )
    reassignments: Annotated[Reassignments | None, mapping_or("none", "{per_year: NUMBER}")] = parameter(
        None,
        "reassignments: {}",
        "Moves of a replica, drawn at random, to a running broker without one, `per_year` times a year in each "
        "partition (a Poisson process), whatever the state of the cluster is. The new replica has `backlog` of "
        "`catch_up` to fetch.",
        "mapping",
    )
    catch_up: Annotated[
        CatchUp | None,
        mapping_or("immediate", "{rate: BYTES/s, backlog: BYTES, write_rate: BYTES/s}"),
    ] = parameter(
        None,
        "catch-up: {}",
        "A restarted replica is back in sync after (down time x `write_rate` + `backlog` if its disk was lost) / "
        "`rate`; `write_rate` is 10MB/s and `backlog` 0 by default. `immediate`: there is no volume to fetch.",
        "mapping",
    )
    slow: Annotated[
        SlowEpisodes | None,
        mapping_or("none", "{per_year: NUMBER, duration: DURATION or distribution, delay: DURATION}"),
    ] = parameter(
        None,
        "slow: {}",
        "Episodes of a slow broker, a Poisson process per broker: for `duration`, all its messages leave `delay` late.",
        "mapping",
    )
    isolated: Isolations = parameter(
        (),
        "isolated: {}",
        "Isolations, a Poisson process per broker, rack or cluster (`of`): for `duration`, messages between its "
        "brokers and `from` are lost, by default `others` (the other brokers and the controllers); `direction`: only "
        "those to (`in`) or of (`out`) its brokers.",
        "mapping",
    )
    paused: Pauses = parameter(
        (),
        "paused: {}",
        "Pauses, likewise: the process takes no input and does nothing, and loses nothing that arrives meanwhile.",
        "mapping",
    )
    slow_disk: SlowDisks = parameter(
        (),
        "slow disk: {}",
        "Disks that stall, likewise: what is to be appended to the broker's logs waits until the end; heartbeats and "
        "reads go on.",
        "mapping",
    )
    power: PowerCauses = parameter(
        (),
        "power: {}",
        "More power events, by cause, each a Poisson process per rack or cluster (`of`). `down`: one down time for all "
        "brokers, otherwise `broker_mttr`; `loss` of unflushed tails, otherwise as of other power events.",
        "mapping",
    )
    failures: Annotated[RecordedFailures | None, RECORDED] = parameter(
        None,
        "failures {}",
        "Recorded failures instead of `broker_mttf`, from a CSV file with the columns node, down_ms, up_ms and kind "
        "(clean, unclean, lossy, disk, or an impairment): replayed, or blocks of them drawn at random.",
        "file",
    )
    duration_ms: DurationMs = parameter(YEAR_MS, "duration {}", "Virtual time that each trial simulates.", gt=0)
    network_latency_ms: DurationMs = parameter(
        1,
        "latency {}",
        "Least one-way latency between two nodes, at most a quarter of `detection`; up to 2 ms of jitter come on top.",
        ge=1,
        le=200,
    )

    start: Literal["stationary", "fresh"] = parameter(
        "stationary",
        "{} start",
        "`stationary`: the failures began long before the measurement, and a warm-up precedes it; `fresh`: all brokers "
        "start at time 0.",
    )
    restart_time_ms: DurationMs = parameter(
        0,
        "restart time {}",
        "Time from the start of a broker's process until it takes part, in the simulator; processes need theirs.",
        ge=0,
    )
    engine: Literal["sim", "ray"] = parameter(
        "sim",
        "engine {}",
        "What runs the trials: `sim`, the simulator, in virtual time; `ray`, clusters of processes with real disks, in "
        "real time.",
    )
    time_compression: Finite = parameter(
        1.0,
        "time x{}",
        "By how much the failures and `duration` are faster in a trial than given here, on either engine. Timeouts of "
        "the protocol (`detection`, `flush_interval`) and network latency are not compressed.",
        "factor",
        gt=0.0,
    )
    estimator: Literal["auto", "plain", "importance", "splitting", "multifidelity"] = parameter(
        "auto",
        "{} estimator",
        "How losses are sampled (docs/rare-events.md). `plain`: failures come as the model says; `importance`: more "
        "often, and weighted; `splitting`: trials that come close to a loss are continued several times; "
        "`multifidelity`: plain or importance, with the controller's decisions alone as control variate; `auto`: plain "
        "where losses are frequent enough, else importance if failures come at constant rates and its trials are "
        "expected to see losses, either with controls where a pilot shows that they pay, else splitting or plain.",
    )
    estimate: Literal["losses", "times"] = parameter(
        "losses",
        "{} estimated",
        "What `auto` and `multifidelity` take trials for. `times`: plain ones where these often see a time without "
        "writes, also if losses are so rare that they are only bounded. By default `times` in a study whose objective "
        "is a share of time and whose targets are not about incidents.",
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: object) -> object:
        """Adds the values of the preset for the parameters that are not given."""
        if not isinstance(given, dict):
            return given
        name = given.get("preset")
        return dict(PRESETS[name].parameters) | given if isinstance(name, str) and name in PRESETS else given

    @model_validator(mode="after")
    def _check_conflicts(self) -> CellParameters:
        for conflict in self._conflicts():
            raise WrongField(*conflict)
        return self

    def _conflicts(self) -> Iterator[tuple[str, object, str]]:
        """Values that others exclude: the parameter, its value, what is allowed."""
        at_most = f"at most the number of brokers ({self.brokers})"
        if self.replication_factor > self.brokers:
            yield "replication_factor", self.replication_factor, at_most
        if self.generation == "v3" and self.engine == "ray":
            yield "generation", self.generation, "kip-497, kip-966-elr or kip-966 on engine ray"
        if self.unclean_recovery_strategy == "manual" and self.generation != "kip-966":
            allowed = f"proactive or balanced in {self.generation}: only kip-966 has manual recovery"
            yield "unclean_recovery_strategy", "manual", allowed
        if self.racks > self.brokers:
            yield "racks", self.racks, at_most
        for burst in self.burst:
            if (burst.size or 0) > self.brokers:
                yield "burst", burst.words(), f"size of {at_most}"
        rolling = self.rolling_restart
        if rolling is not None and self.brokers * (rolling.down_ms + rolling.pause_ms) > rolling.every_ms:
            allowed = f"every of at least brokers x (down + pause), for {self.brokers} brokers"
            yield "rolling_restart", rolling.words(), allowed
        if self.reassignments is not None:
            yield from self._conflicts_of_reassignments(self.reassignments.words())
        yield from self._conflicts_of_causes()
        if self.failures is not None and any(outage.node >= self.brokers for outage in self.failures.outages):
            yield "failures", self.failures.file, f"nodes from 0 to {self.brokers - 1}, the brokers"
        if self.network_latency_ms > (self.heartbeat_interval_ms or math.inf):
            yield "network_latency", self.network_latency_ms, f"at most a quarter of detection ({self.detection_ms} ms)"
        if self.time_compression != 1.0:
            yield from self._given_mappings("no time_compression: the times of this parameter are not compressed")
        yield from self._conflicts_on_processes() if self.engine == "ray" else ()
        yield from self._conflicts_of_cluster() if self.cluster is not None else ()

    def _conflicts_of_cluster(self) -> Iterator[tuple[str, object, str]]:
        """What needs one partition that stands for itself, or real processes."""
        if self.engine == "ray":
            yield "engine", self.engine, "sim with cluster: whole clusters are simulated"
        if self.reassignments is not None:
            allowed = "none with cluster: a move takes one partition out of those that are counted together"
            yield "reassignments", self.reassignments.words(), allowed
        if self.estimator in ("importance", "splitting"):
            allowed = "plain or multifidelity with cluster: the probability of a loss in a year needs whole trials"
            yield "estimator", self.estimator, allowed

    def _conflicts_of_reassignments(self, words: str) -> Iterator[tuple[str, object, str]]:
        if self.replication_factor == self.brokers:
            allowed = f"more brokers than replicas (brokers {self.brokers}, replication_factor {self.brokers})"
            yield "reassignments", words, allowed
        if self.generation == "v3":
            yield "reassignments", words, "generation kip-497, kip-966-elr or kip-966"
        if self.catch_up is not None and self.partitions > 1:
            allowed = "partitions 1 with catch_up: the simulator holds back a broker's replicas together"
            yield "reassignments", words, allowed

    def _conflicts_of_causes(self) -> Iterator[tuple[str, object, str]]:
        for name in ("isolated", "paused", "slow_disk", "power", "burst"):
            named = [(cause.name, getattr(cause, "of", "cluster")) for cause in getattr(self, name)]
            twice = next((cause for cause in named if named.count(cause) > 1), None)
            if twice is not None:
                yield name, f"{twice[0]} twice", "another name for each cause of a level"
        if self.generation == "v3":
            yield from self._given_impairments("generation kip-497, kip-966-elr or kip-966")

    def _given_impairments(self, allowed: str, kinds: Sequence[str] = IMPAIRMENTS) -> Iterator[tuple[str, object, str]]:
        for name, causes in (("isolated", self.isolated), ("paused", self.paused), ("slow_disk", self.slow_disk)):
            if any(cause.kind in kinds for cause in causes):
                yield name, PARAMETERS[name].notation.write(causes), allowed
        recorded = () if self.failures is None else self.failures.outages
        found = next((outage.kind for outage in recorded if outage.kind in kinds), None)
        if found is not None:
            yield "failures", f"the kind {found}", allowed

    def _given_mappings(self, allowed: str) -> Iterator[tuple[str, object, str]]:
        for name in ("catch_up", "slow", "reassignments"):
            found = getattr(self, name)
            if found is not None:
                yield name, found.words(), allowed

    def _conflicts_on_processes(self) -> Iterator[tuple[str, object, str]]:
        """A trial on processes runs in real time, and has no parts that only the simulator has."""
        if self.detection_ms is None:
            yield "detection", "instant", "a duration with engine ray: processes detect crashes by timeouts"
        yield from self._given_mappings("the engine sim: only the simulator has this parameter")
        yield from self._given_impairments("the engine sim: only the simulator stalls disks", (SLOW_DISK,))
        if self.consumer != "none":
            yield "consumer", self.consumer, "none with engine ray: only the simulator records reads"
        real_ms = self.duration_ms / self.time_compression
        if real_ms > LONGEST_PROCESS_TRIAL_MS:
            allowed = (
                f"at most {format_duration(LONGEST_PROCESS_TRIAL_MS)} of real time with engine ray, after division by "
                f"time_compression ({self.time_compression:g}); a trial would take {format_duration(round(real_ms))}"
            )
            yield "duration", format_duration(self.duration_ms), allowed

    @property
    def heartbeat_interval_ms(self) -> int | None:
        """Four heartbeats per session timeout; None where the simulator detects crashes instead."""
        return None if self.detection_ms is None else max(1, self.detection_ms // 4)

    @property
    def impairments(self) -> tuple[AnyImpairment, ...]:
        """The causes of impairments."""
        return (*self.isolated, *self.paused, *self.slow_disk)

    @property
    def longest_repair_ms(self) -> int:
        """The mean of the longest down time, or impairment, that a cause of failure of this cell has."""
        powers = (
            (self.power_events_per_year, self.power_mttr),
            (self.rack_power_events_per_year, self.rack_power_mttr),
            *((1.0, burst.down) for burst in self.burst),
            *((cause.per_year, cause.down) for cause in self.power),
            *((cause.per_year, cause.duration) for cause in self.impairments),
        )
        return max([self.broker_mttr.mean_ms, *(down.mean_ms for rate, down in powers if rate > 0 and down)])

    @property
    def longest_absence_ms(self) -> int:
        """The mean time that the longest kind of failure keeps a replica out of sync: down, start, catch-up."""
        absence_ms = self.longest_repair_ms + self.restart_time_ms
        if self.catch_up is not None:
            lost = self.unclean_probability * self.disk_loss_probability
            absence_ms += self.catch_up.needed_ms(absence_ms, lost_disk=False)
            absence_ms += round(lost * self.catch_up.needed_ms(0, lost_disk=True))
        return absence_ms

    @property
    def tail_lost_with_power(self) -> float:
        """The probability that a power event loses the unflushed tail of a broker's logs."""
        return self.tail_loss_probability if self.power_loss_probability is None else self.power_loss_probability

    @property
    def exposed_ms(self) -> float:
        """How long a crash of the machine may lose an acknowledged record: until written back or flushed."""
        limits = [limit for limit in (self.writeback_ms, self.flush_interval_ms) if limit is not None]
        return min(limits, default=math.inf)

    @property
    def counts(self) -> tuple[int, ...]:
        """For each partition of a trial how many partitions of the cluster it stands for."""
        return (1,) * self.partitions if self.cluster is None else self.cluster.counts

    @property
    def partition_years(self) -> float:
        """What one trial observes, in partition-years."""
        return self.partitions * self.duration_ms / YEAR_MS


PARAMETERS = parameters(CellParameters)
"""All parameters by their names in study files."""
