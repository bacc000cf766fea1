"""A study's settings in Kafka's own terms: which configs to type, and which release has them.

The releases of generations are those of `protocol/kafka_release.py`. Strategies of unclean recovery, which no release
has, have other names in the later text of KIP-966.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.studies.design.mappings import RollingRestart
from experiments.studies.design.model import PARAMETERS, CellParameters
from experiments.studies.design.study import DECISIONS
from experiments.support.durations import format_duration
from protocol.config import ENABLE_OF_STRATEGY
from protocol.kafka_release import GENERATION_RELEASES, KafkaRelease

ELR = "eligible.leader.replicas.version"
IN_ALL = "every release"
IN_NONE = "in no release yet (KIP-966, second part)"
LATER_NAMES = {"proactive": "Aggressive", "balanced": "Balanced", "manual": "None"}
DEFAULT_SESSION_MS, DEFAULT_DELIVERY_MS = 9_000, 120_000
BOOTSTRAP = "--bootstrap-server HOST:9092"


CONFIGS = {
    "v3": "none: ISRs in ZooKeeper",
    "kip-497": f"{ELR}=0",
    "kip-966-elr": f"{ELR}=1",
    "kip-966": f"{ELR}=1 and Unclean Recovery",
}
"""What to set for each generation."""


@dataclass(frozen=True, slots=True)
class Config:
    """What to type for one value of a parameter. `parameter`: the value as the study names it; `config`: as Kafka does;
    `where`: of what it is a config; `release`: which release has it."""

    parameter: str
    config: str
    where: str
    release: str


def _strategy(params: CellParameters) -> tuple[str, str, str]:
    if params.generation == "v3":
        return (
            "none: any live replica is elected",
            "no setting of v3",
            "before 0.8.2, which added unclean.leader.election.enable",
        )
    strategy = params.unclean_recovery_strategy
    if params.generation != "kip-966":
        enabled = ENABLE_OF_STRATEGY[strategy]
        where = "topic or cluster" if enabled else "topic or cluster (the default)"
        return f"unclean.leader.election.enable={str(enabled).lower()}", where, IN_ALL
    return (
        f"unclean.recovery.strategy={strategy}",
        f"topic or cluster; `{LATER_NAMES[strategy]}` in the later text of the KIP",
        IN_NONE,
    )


def _detection(params: CellParameters) -> tuple[str, str, str]:
    if params.detection_ms is not None and params.generation == "v3":
        return f"zookeeper.session.timeout.ms={params.detection_ms}", "brokers", "Kafka 0.8 to 3.9 (ZooKeeper)"
    if params.detection_ms is None:
        return "none: an oracle reports crashes", "no setting of Kafka", "no release"
    return f"broker.session.timeout.ms={params.detection_ms}", "controllers", "Kafka 2.8 and later (KRaft)"


def _restarts(rolling: RollingRestart) -> str:
    down, pause = format_duration(rolling.down_ms), format_duration(rolling.pause_ms)
    return f"controlled shutdowns, {down} down, {pause} between brokers"


def _written(params: CellParameters) -> dict[str, tuple[str, str, str] | None]:
    """Config, of what it is a config, and release, for each decision; None where Kafka has nothing to type."""
    flush, rolling, moves = params.flush_interval_ms, params.rolling_restart, params.reassignments
    run_by, release = GENERATION_RELEASES[params.generation], params.kafka_release
    topics = "topic, when it is created; later with kafka-reassign-partitions.sh"
    least = "topic; with ELR the cluster's default is one for all brokers"
    placed = {"spread": "broker.rack set to each broker's rack", "together": "replicas assigned within one rack"}
    return {
        "generation": (CONFIGS[params.generation], "feature of the cluster", run_by.releases),
        "kafka_release": (f"Kafka {release}", "the brokers' and controllers' software", KafkaRelease(release).exact)
        if run_by.installable
        else None,
        "replication_factor": (f"replication.factor={params.replication_factor}", topics, IN_ALL),
        "min_insync_replicas": (f"min.insync.replicas={params.min_insync_replicas}", least, IN_ALL),
        "unclean_recovery_strategy": _strategy(params),
        "acks": (f"acks={params.acks}", "producers", IN_ALL),
        "delivery_timeout": (f"delivery.timeout.ms={params.delivery_timeout_ms}", "producers", IN_ALL),
        "detection": _detection(params),
        "flush_interval": ("flush.ms not set", "topic (the default)", IN_ALL)
        if flush is None
        else (f"flush.ms={flush}", "topic", IN_ALL),
        "placement": (placed[params.placement], "brokers, before topics are created", IN_ALL)
        if params.racks > 1 and params.cluster is None
        else None,
        "cluster": None
        if params.cluster is None
        else (f"placement {params.cluster.placement}", "replicas assigned with kafka-reassign-partitions.sh", IN_ALL),
        "rolling_restart": None if rolling is None else (_restarts(rolling), "operations", IN_ALL),
        "reassignments": None if moves is None else (f"{moves.per_year:g} moves a year", "operations", IN_ALL),
    }


assert set(_written(CellParameters())) == DECISIONS


def configs(cells: Sequence[CellParameters]) -> list[Config]:
    """One row for each value of each setting of the cells, by parameter; none where nothing is to be typed."""
    rows: dict[tuple[str, str], Config] = {}
    written = [(params, _written(params)) for params in cells]
    for name in written[0][1]:
        item = PARAMETERS[name]
        for params, found in written:
            row = found[name]
            if row is not None:
                value = item.notation.write(getattr(params, item.field))
                rows.setdefault((name, row[0]), Config(item.words.format(value), *row))
    return list(rows.values())


def commands(params: CellParameters) -> list[str]:
    """The lines to type for a setting, for a topic named TOPIC; of a generation that no release has, that none do."""
    if GENERATION_RELEASES[params.generation].installable:
        return list(_commands(params))
    enabled = params.generation == "v3" or ENABLE_OF_STRATEGY[params.unclean_recovery_strategy]
    nearest = "kip-497" if params.generation == "v3" else "kip-966-elr"
    return [
        f"# {params.generation}: no release of Apache Kafka has it, so nothing can be typed to run it.",
        f"# The nearest that can be installed is another setting, with numbers of its own: {nearest} with",
        f"# unclean.leader.election.enable={str(enabled).lower()}.",
    ]


def _commands(params: CellParameters) -> Iterator[str]:
    if params.generation == "kip-497":
        yield f"bin/kafka-features.sh {BOOTSTRAP} downgrade --feature {ELR}=0   # from Kafka 4.0 on"
    else:
        yield f"bin/kafka-features.sh {BOOTSTRAP} upgrade --feature {ELR}=1"
    configs = [f"min.insync.replicas={params.min_insync_replicas}"]
    configs += [f"flush.ms={params.flush_interval_ms}"] if params.flush_interval_ms is not None else []
    configs += ["unclean.leader.election.enable=true"] if params.unclean_recovery_strategy == "proactive" else []
    if params.racks > 1 and params.placement == "spread":
        yield "broker.rack=RACK   # in each broker's server.properties, before the topic is created"
    if params.racks > 1 and params.placement == "together":
        yield "# replicas within one rack: --replica-assignment instead of --replication-factor"
    yield (
        f"bin/kafka-topics.sh {BOOTSTRAP} --create --topic TOPIC --replication-factor {params.replication_factor} "
        + " ".join(f"--config {config}" for config in configs)
    )
    yield (
        f"bin/kafka-configs.sh {BOOTSTRAP} --alter --entity-type topics --entity-name TOPIC --add-config "
        f"{','.join(configs)}   # a topic that exists"
    )
    if params.detection_ms is None:
        yield "# detection instant: no setting of Kafka, whose brokers are missed after broker.session.timeout.ms"
    elif params.detection_ms != DEFAULT_SESSION_MS:
        yield f"broker.session.timeout.ms={params.detection_ms}   # in each controller's server.properties"
    yield f"acks={params.acks}   # in each producer"
    if params.delivery_timeout_ms != DEFAULT_DELIVERY_MS:
        yield f"delivery.timeout.ms={params.delivery_timeout_ms}   # in each producer"
    if params.rolling_restart is not None:
        yield f"# rolling restarts: {_restarts(params.rolling_restart)}"
