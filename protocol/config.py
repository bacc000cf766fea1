"""Configs under Kafka's names, and protocol generations as sets of switches.

Every config is declared once in `CONFIGS`: its type, default, range and scope. Topic-scoped configs may be overridden
per topic; their cluster-wide value is the default (H1-H5). `Generation` names a set of `Features`; the protocol code
asks for features and never for a generation by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

ConfigValue = int | bool | str


class ConfigError(ValueError):
    """A config that does not exist, or a value that it does not take: `name`, `found`, `allowed`."""

    def __init__(self, name: str, found: object, allowed: str) -> None:
        self.name, self.found, self.allowed = name, found, allowed
        super().__init__(f"{name}: found {found!r}; allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One config. `minimum` bounds integers, `choices` lists the words of an enumeration."""

    name: str
    default: ConfigValue
    topic_scoped: bool = False
    minimum: int = 0
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        if self.choices:
            return " | ".join(self.choices)
        return "true | false" if isinstance(self.default, bool) else f"a whole number >= {self.minimum}"

    def parse(self, value: object) -> ConfigValue:
        """The typed value of what a user or a record wrote (`"2"`, `2`, `true`); ConfigError where it does not fit."""
        if isinstance(self.default, bool):
            if isinstance(value, bool):
                return value
            if value in ("true", "false"):
                return value == "true"
        elif isinstance(self.default, int):
            if isinstance(value, str) and value.removeprefix("-").isdecimal():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and value >= self.minimum:
                return value
        elif isinstance(value, str) and value.lower() in self.choices:
            return value.lower()
        raise ConfigError(self.name, value, self.allowed)


NEVER = 2**63 - 1
"""Kafka's "no flush by policy" (Long.MAX_VALUE) for `flush.messages` and `flush.ms`."""

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"
UNCLEAN_RECOVERY_STRATEGY = "unclean.recovery.strategy"
BROKER_SESSION_TIMEOUT_MS = "broker.session.timeout.ms"
BROKER_HEARTBEAT_INTERVAL_MS = "broker.heartbeat.interval.ms"
REPLICA_LAG_TIME_MAX_MS = "replica.lag.time.max.ms"
REPLICA_FETCH_WAIT_MAX_MS = "replica.fetch.wait.max.ms"
REPLICA_FETCH_MAX_BYTES = "replica.fetch.max.bytes"
REQUEST_TIMEOUT_MS = "request.timeout.ms"
DELIVERY_TIMEOUT_MS = "delivery.timeout.ms"
RETRY_BACKOFF_MS = "retry.backoff.ms"
HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = "replica.high.watermark.checkpoint.interval.ms"
FLUSH_MESSAGES = "flush.messages"
FLUSH_MS = "flush.ms"

CONFIGS: dict[str, ConfigDef] = {
    definition.name: definition
    for definition in (
        ConfigDef(MIN_INSYNC_REPLICAS, 1, topic_scoped=True, minimum=1),
        ConfigDef(UNCLEAN_LEADER_ELECTION_ENABLE, False, topic_scoped=True),
        ConfigDef(
            UNCLEAN_RECOVERY_STRATEGY, "balanced", topic_scoped=True, choices=("proactive", "balanced", "manual")
        ),
        ConfigDef(FLUSH_MESSAGES, NEVER, topic_scoped=True, minimum=1),
        ConfigDef(FLUSH_MS, NEVER, topic_scoped=True, minimum=1),
        ConfigDef(BROKER_SESSION_TIMEOUT_MS, 9_000, minimum=1),
        ConfigDef(BROKER_HEARTBEAT_INTERVAL_MS, 2_000, minimum=1),
        ConfigDef(REPLICA_LAG_TIME_MAX_MS, 30_000, minimum=1),
        ConfigDef(REPLICA_FETCH_WAIT_MAX_MS, 500, minimum=1),
        ConfigDef(REPLICA_FETCH_MAX_BYTES, 1_048_576, minimum=1),
        ConfigDef(REQUEST_TIMEOUT_MS, 30_000, minimum=1),
        ConfigDef(DELIVERY_TIMEOUT_MS, 30_000, minimum=1),
        ConfigDef(RETRY_BACKOFF_MS, 100, minimum=1),
        ConfigDef(HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS, 5_000, minimum=1),
    )
}


def parse_config(name: str, value: object, *, topic: bool = False) -> ConfigValue:
    """The typed value of config `name`; ConfigError for an unknown name (or one that no topic may override) or a bad
    value.
    """
    names = sorted(known for known, definition in CONFIGS.items() if definition.topic_scoped or not topic)
    if name not in names:
        raise ConfigError("config", name, ", ".join(names))
    return CONFIGS[name].parse(value)


@dataclass(frozen=True, slots=True)
class Features:
    """Switches of the protocol; each is named after the rule that it turns on."""

    elr: bool
    """Eligible leader replicas are kept and elected from; the ISR may become empty (E12-E31)."""
    effective_min_isr: bool
    """min.insync.replicas above the replica count counts as the replica count (E8)."""
    high_watermark_needs_min_isr: bool
    """The high watermark moves only while the committed ISR has min ISR members (E1-E4)."""
    last_known_leader_in_elr: bool = False
    """Kafka's first phase: the last known leader is what `last_known_elr` holds, and is elected from there (K5)."""
    track_last_known_leader: bool = False
    """The last known leader has a field of its own (E24, N15)."""


class Generation(Enum):
    """Protocol generations that can be run; see docs/architecture.md for what each switches on."""

    KIP_497 = "kip-497"
    KIP_966_ELR = "kip-966-elr"
    KIP_966 = "kip-966"

    @property
    def features(self) -> Features:
        return _FEATURES[self]


_FEATURES = {
    Generation.KIP_497: Features(elr=False, effective_min_isr=False, high_watermark_needs_min_isr=False),
    Generation.KIP_966_ELR: Features(True, True, True, last_known_leader_in_elr=True),
    Generation.KIP_966: Features(True, True, True, track_last_known_leader=True),
}


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The static configuration of a cluster's nodes: generation and cluster-wide config values (typed, all present)."""

    generation: Generation = Generation.KIP_966
    values: Mapping[str, ConfigValue] = field(default_factory=lambda: {d.name: d.default for d in CONFIGS.values()})

    @classmethod
    def of(cls, generation: Generation, overrides: Mapping[str, object] | None = None) -> ClusterConfig:
        """Defaults with `overrides` on top; ConfigError for what does not exist or does not fit."""
        values: dict[str, ConfigValue] = {definition.name: definition.default for definition in CONFIGS.values()}
        for name, value in (overrides or {}).items():
            values[name] = parse_config(name, value)
        return cls(generation, values)

    @property
    def features(self) -> Features:
        return _FEATURES[self.generation]

    def int_value(self, name: str) -> int:
        """The value of an integer config, in the unit of its name."""
        return int(self.values[name])
