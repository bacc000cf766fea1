"""Configs under Kafka's names.

A config has a value in up to three places, of which the first one wins: the override of a topic (topic-scoped configs
only), the dynamic default of the cluster, and the static configuration of the nodes (H1-H5). Nodes read a read-only
config once, at their start, so it has no dynamic value. Single brokers have no dynamic values either, because leader
and controller must agree (H15).

`unclean.leader.election.enable` and `unclean.recovery.strategy` express the same choice before and with KIP-966. The
feature `unclean.recovery.enabled` decides which of them is in force, and changing it converts one into the other
(H6-H9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeVar

from protocol.errors import did_you_mean
from protocol.features import LOG_GENERATIONS, RELEASED, Features, Generation
from protocol.kafka_release import NEWEST, KafkaRelease
from protocol.kafka_rules import KAFKA_RULES

ConfigValue = int | bool | str
Value = TypeVar("Value")


class ConfigError(ValueError):
    """An unknown config, or a value that a config does not accept: `name`, `found` and a `hint` to it, `allowed`."""

    def __init__(self, name: str, found: object, allowed: str, hint: str = "") -> None:
        self.name, self.found, self.allowed, self.hint = name, found, allowed, hint
        super().__init__(f"{name}: found {found!r}{hint}; allowed: {allowed}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str, str]]:
        """How it passes from the process of a node to others."""
        return ConfigError, (self.name, self.found, self.allowed, self.hint)


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """The declaration of one config.

    `unit` is that of its values (empty: none), `source` a KIP, items of docs/requirements.md, or Kafka's own
    documentation, `text` what it means in a sentence. `minimum` and `maximum` bound integers, `choices` are the allowed
    words of a text; a `node_list` accepts what `node_ids` parses, any other text is accepted as it is. Only
    `topic_scoped` configs can be overridden per topic; `read_only` ones cannot be changed in a running cluster.
    `generations` are those in which it has an effect.
    """

    name: str
    default: ConfigValue
    unit: str
    source: str
    text: str = ""
    topic_scoped: bool = False
    minimum: int = 1
    maximum: int = 2**63 - 1
    choices: tuple[str, ...] = ()
    read_only: bool = False
    node_list: bool = False
    generations: tuple[Generation, ...] = tuple(Generation)

    def declare(self, text: str) -> str:
        """Adds the config to `CONFIGS`, with the text that completes its declaration, and returns its name."""
        CONFIGS[self.name] = replace(self, text=text)
        return self.name

    @property
    def type_name(self) -> str:
        """The type as Kafka's DescribeConfigs names it."""
        if isinstance(self.default, bool):
            return "BOOLEAN"
        if isinstance(self.default, int):
            return "INT" if self.maximum <= INT_MAX else "LONG"
        return "STRING"

    @property
    def allowed(self) -> str:
        """The accepted values, for error messages."""
        if self.choices:
            return " | ".join(self.choices)
        if self.node_list:
            return "controllers, as 1000, 1000@host:port or controller-1000:port, separated by commas"
        if isinstance(self.default, str):
            return "a text"
        if isinstance(self.default, bool):
            return "true | false"
        upper = self.maximum < INT_MAX
        return f"a whole number from {self.minimum} to {self.maximum}" if upper else f"a whole number >= {self.minimum}"

    def parse(self, value: object) -> ConfigValue:
        """The typed value of a text or number; blanks around words and their case do not matter. Raises ConfigError."""
        if isinstance(self.default, bool):
            if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false")):
                return str(value).strip().lower() == "true"
        elif isinstance(self.default, int):
            if isinstance(value, str) and len(value) <= _LONGEST_NUMBER and value.strip().removeprefix("-").isdecimal():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum:
                return value
        elif isinstance(value, str) and not self.choices:
            if not self.node_list or all(map(_NODE.fullmatch, _items(value))):
                return value
        elif isinstance(value, str):
            for choice in self.choices:
                if choice.lower() == value.strip().lower():
                    return choice
        raise ConfigError(self.name, value, self.allowed)


_NODE = re.compile(r"(?:controller-)?(\d{1,9})(?:@[^,@]+|:\d+)?")


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


@lru_cache(maxsize=64)
def node_ids(text: ConfigValue) -> tuple[int, ...]:
    """The ids in the value of a `node_list` config, in its order."""
    return tuple(int(found[1]) for found in map(_NODE.fullmatch, _items(str(text))) if found)


_LONGEST_NUMBER = 40
"""The maximum number of characters of a number."""
SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1

NEVER = 2**63 - 1
"""Kafka's "no flush by policy" (Long.MAX_VALUE) for `flush.messages` and `flush.ms`."""

CONFIGS: dict[str, ConfigDef] = {}
"""Every config by name."""

_topic = partial(ConfigDef, topic_scoped=True)
"""A config that topics can override."""
_node = partial(ConfigDef, read_only=True)
"""A config that a node reads at its start."""
_quorum = partial(_node, generations=LOG_GENERATIONS)
"""A config of the metadata log and its quorum of controllers."""

MIN_INSYNC_REPLICAS = _topic("min.insync.replicas", 1, "replicas", "KIP-966; H1, E6, E8", maximum=INT_MAX).declare(
    "Number of in-sync replicas that an acks=all write needs. From kip-966-elr on a value above the number of "
    "replicas counts as that number; before, it refuses all such writes."
)
UNCLEAN_LEADER_ELECTION_ENABLE = _topic(
    "unclean.leader.election.enable", False, "", "H2, K5", generations=(Generation.KIP_497, Generation.KIP_966_ELR)
).declare(
    "Whether the controller may elect a replica that is neither in the ISR nor in the ELR, which can lose records."
)
UNCLEAN_RECOVERY_STRATEGY = _topic(
    "unclean.recovery.strategy",
    "balanced",
    "",
    "KIP-966; H3, F2-F4",
    choices=("proactive", "balanced", "manual"),
    generations=(Generation.KIP_966,),
).declare(
    "When the controller recovers a partition without an eligible leader: at once, when the last known ELR is back, "
    "or on request."
)
UNCLEAN_RECOVERY_TIMEOUT_MS = _topic(
    "unclean.recovery.timeout.ms", 5_000, "ms", "KIP-966; H5, N23", maximum=INT_MAX, generations=(Generation.KIP_966,)
).declare("How long an unclean recovery waits for the replies of replicas that are not required.")
FLUSH_MESSAGES = _topic("flush.messages", NEVER, "records", "E22").declare(
    "Number of unflushed records after which a broker flushes a partition's log."
)
FLUSH_MS = _topic("flush.ms", NEVER, "ms", "E22").declare(
    "Age of the oldest unflushed record after which a broker flushes a partition's log."
)
BROKER_SESSION_TIMEOUT_MS = _node("broker.session.timeout.ms", 9_000, "ms", "KIP-631").declare(
    "Time without a heartbeat after which the controller fences a broker."
)
BROKER_HEARTBEAT_INTERVAL_MS = _node("broker.heartbeat.interval.ms", 2_000, "ms", "KIP-631").declare(
    "Interval of a broker's heartbeats to the controller."
)
REPLICA_LAG_TIME_MAX_MS = _node("replica.lag.time.max.ms", 30_000, "ms", "A13, KIP-497").declare(
    "Time without having caught up after which the leader proposes to remove a follower from the ISR."
)
REPLICA_FETCH_WAIT_MAX_MS = _node("replica.fetch.wait.max.ms", 500, "ms", "A26").declare(
    "Longest time for which the leader delays a follower's fetch that finds no records."
)
REPLICA_FETCH_MAX_BYTES = _node("replica.fetch.max.bytes", 1_048_576, "bytes", "A26").declare(
    "Bytes per partition that a follower requests in one fetch; a larger first batch is still returned."
)
REQUEST_TIMEOUT_MS = _node("request.timeout.ms", 30_000, "ms", "E7").declare(
    "Time after which a client or broker gives up a request, and a leader an acks=all write."
)
DELIVERY_TIMEOUT_MS = _node("delivery.timeout.ms", 30_000, "ms", "KIP-91").declare(
    "Time after which a client reports a command as failed or unknown, retries included."
)
RETRY_BACKOFF_MS = _node("retry.backoff.ms", 100, "ms", "KIP-580").declare(
    "Wait before a client or broker repeats a failed request."
)
HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = _node(
    "replica.high.watermark.checkpoint.interval.ms", 5_000, "ms", "H13"
).declare("Interval at which a broker writes the high watermarks of its partitions to disk.")
SEGMENT_BYTES = _topic("segment.bytes", 1_073_741_824, "bytes", "Kafka", maximum=INT_MAX).declare(
    "Size at which a broker rolls a log to a new segment."
)
INDEX_INTERVAL_BYTES = _node("index.interval.bytes", 4_096, "bytes", "Kafka", minimum=0, maximum=INT_MAX).declare(
    "Bytes of a log segment between two entries of its offset index, on ray."
)
RETENTION_MS = _topic("retention.ms", 604_800_000, "ms", "Kafka", minimum=-1).declare(
    "Age of the newest record of a segment after which a broker deletes it; -1 keeps segments of any age."
)
RETENTION_BYTES = _topic("retention.bytes", -1, "bytes", "Kafka", minimum=-1).declare(
    "Size of a log above which a broker deletes its oldest segments; -1 keeps logs of any size."
)
DELETE, COMPACT = "delete", "compact"
CLEANUP_POLICY = _topic(
    "cleanup.policy", DELETE, "", "Kafka", choices=(DELETE, COMPACT, "compact,delete", "delete,compact")
).declare(
    "What happens to old segments: the retention configs hold with `delete` only. Logs are not compacted: with "
    "`compact` every record is kept, as it may be in Kafka, which sets no time for it."
)
LOG_RETENTION_CHECK_INTERVAL_MS = _node("log.retention.check.interval.ms", 300_000, "ms", "Kafka").declare(
    "Interval at which a broker looks for segments to delete."
)
MAX_MESSAGE_BYTES = _topic("max.message.bytes", 1_048_588, "bytes", "Kafka", minimum=0, maximum=INT_MAX).declare(
    "Largest record batch that a leader accepts from a producer."
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = _topic(
    "message.timestamp.after.max.ms", 3_600_000, "ms", "KIP-937", minimum=0
).declare("How far ahead of the leader's clock the timestamp of a record may be.")
MESSAGE_TIMESTAMP_TYPE = _topic("message.timestamp.type", "CreateTime", "", "KIP-32", choices=("CreateTime",)).declare(
    "Whose timestamp a record has: the producer's. Leaders do not write theirs (Kafka's LogAppendTime)."
)
NUM_REPLICA_FETCHERS = _node("num.replica.fetchers", 1, "fetchers", "H13", maximum=64).declare(
    "Number of fetchers of a follower for each leader, among which partitions are divided."
)
REPLICA_FETCH_MIN_BYTES = _node("replica.fetch.min.bytes", 1, "bytes", "A26").declare(
    "Bytes that a leader collects before it answers a follower's fetch."
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = _node("replica.fetch.response.max.bytes", 10_485_760, "bytes", "A26").declare(
    "Bytes in all that a follower requests in one fetch."
)
PRODUCER_ID_EXPIRATION_MS = _node("producer.id.expiration.ms", 86_400_000, "ms", "KIP-98").declare(
    "Time without a write after which a broker forgets the sequence numbers of a producer."
)
ENABLE_IDEMPOTENCE = _node("enable.idempotence", True, "", "KIP-98").declare(
    "Whether producers with acks=all number their batches, so that a retry is stored once."
)
LINGER_MS = _node("linger.ms", 5, "ms", "KIP-1030", minimum=0).declare(
    "How long a producer waits for more records before it sends a batch that is not full."
)
BATCH_SIZE = _node("batch.size", 16_384, "bytes", "Kafka", maximum=INT_MAX).declare(
    "Payload bytes at which a producer sends a batch."
)
BUFFER_MEMORY = _node("buffer.memory", 33_554_432, "bytes", "Kafka").declare(
    "Payload bytes that a producer holds; further commands wait for max.block.ms."
)
MAX_BLOCK_MS = _node("max.block.ms", 60_000, "ms", "Kafka", minimum=0).declare(
    "How long a command waits for room in the producer's buffer before it fails."
)
MAX_IN_FLIGHT_REQUESTS = _node("max.in.flight.requests.per.connection", 5, "batches", "KIP-98", maximum=5).declare(
    "Unacknowledged batches per partition that a producer sends; a leader remembers five per producer."
)
NUM_PARTITIONS = ConfigDef("num.partitions", 1, "partitions", "Kafka", maximum=INT_MAX).declare(
    "Number of partitions of a new topic that does not set it."
)
DEFAULT_REPLICATION_FACTOR = ConfigDef("default.replication.factor", 1, "replicas", "Kafka", maximum=SHORT_MAX).declare(
    "Replication factor of a new topic that does not set it."
)
AUTO_LEADER_REBALANCE_ENABLE = _node("auto.leader.rebalance.enable", False, "", "KAFKA-13682").declare(
    "Whether the controller elects preferred leaders by itself (Kafka's default: true), not only on request."
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = _node("leader.imbalance.check.interval.seconds", 300, "s", "Kafka").declare(
    "Interval at which the controller looks for partitions that another replica than the preferred one leads."
)
LEADER_IMBALANCE_PERCENTAGE = _node("leader.imbalance.per.broker.percentage", 10, "%", "Kafka", minimum=0).declare(
    "In v3, the share of a broker's preferred leaderships that others may have. Other generations ignore it, as Kafka."
)
UNCLEAN_LEADER_HOOK = _node("unclean.leader.hook", "", "", "KIP-704; C8").declare(
    "Routine `module:function` that a broker runs after an unclean election, before it lets followers into the ISR; "
    "empty: none."
)
AUTHORIZER_CLASS_NAME = _node("authorizer.class.name", "", "", "KIP-801", choices=("", "standard")).declare(
    "Authorizer of requests: `standard` checks access control entries, empty allows everything."
)
LISTENERS = _quorum("listeners", "", "", "KIP-103").declare(
    "Where brokers listen for Kafka's clients: `PROTOCOL://HOST:PORT` with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. "
    "Broker N listens N above that port, at a free one with 0; without a host at the address of its machine. Empty: "
    "nowhere."
)
SSL_KEYSTORE_LOCATION = _quorum("ssl.keystore.location", "", "", "KIP-651").declare(
    "PEM file on the brokers' machines with the private key and the certificate chain of a TLS listener."
)
SSL_TRUSTSTORE_LOCATION = _quorum("ssl.truststore.location", "", "", "KIP-651").declare(
    "PEM file with the authorities whose certificates of clients a TLS listener accepts."
)
SSL_CLIENT_AUTH = _quorum("ssl.client.auth", "none", "", "Kafka", choices=("none", "required")).declare(
    "Whether a TLS listener asks clients for a certificate, whose subject is then their principal."
)
SOCKET_REQUEST_MAX_BYTES = _node("socket.request.max.bytes", 104_857_600, "bytes", "Kafka", maximum=INT_MAX).declare(
    "Largest request that a listener for Kafka's clients accepts; a larger one ends its connection."
)
MAX_CONNECTIONS = _node("max.connections", INT_MAX, "connections", "KIP-402", maximum=INT_MAX).declare(
    "Number of connections of Kafka's clients that a broker accepts; another one is closed."
)
MAX_CONNECTIONS_PER_IP = _node("max.connections.per.ip", INT_MAX, "connections", "Kafka", maximum=INT_MAX).declare(
    "Number of connections from one address that a broker accepts; another one is closed."
)
CONNECTIONS_MAX_IDLE_MS = _node("connections.max.idle.ms", 600_000, "ms", "Kafka", minimum=-1).declare(
    "Time without a request after which a broker closes a connection of a Kafka client; -1: never."
)
SASL_ENABLED_MECHANISMS = _node(
    "sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", "", "Kafka (default: GSSAPI)"
).declare("SASL mechanisms of a listener, separated by commas.")
SASL_USERS_FILE = _quorum("sasl.users.file", "", "", "this project").declare(
    "File of the users of a listener with SASL on each broker's machine, with lines NAME=PASSWORD; it is read when a "
    "broker starts."
)
SASL_MAX_RECEIVE_BYTES = _node("sasl.server.max.receive.size", 524_288, "bytes", "Kafka", maximum=INT_MAX).declare(
    "Largest request that a listener accepts before a client is authenticated."
)
SUPER_USERS = _node("super.users", "", "", "KIP-801").declare(
    "Principals separated by semicolons that the authorizer allows everything."
)
ISR_UPDATES = _node(
    "inter.broker.protocol.isr.updates",
    "leader",
    "",
    "KIP-497; K12, K13",
    choices=("leader", "controller"),
    generations=(Generation.V3,),
).declare("Who writes an ISR to the store: the leader of the partition, or the controller on the leader's request.")
REPLICA_LAG_MIN_MESSAGES = _node(
    "replica.lag.min.messages", 4_000, "records", "A45, N5", generations=(Generation.V3,)
).declare("How far a follower may be ahead of the slowest member of the ISR when the leader admits it to the ISR.")
CONTROLLER_QUORUM_VOTERS = _quorum("controller.quorum.voters", "", "", "KIP-595; D1-D3", node_list=True).declare(
    "Static voters of the metadata log, as `1000@host:port` or ids; empty: the log contains the voters."
)
CONTROLLER_QUORUM_BOOTSTRAP_SERVERS = _quorum(
    "controller.quorum.bootstrap.servers", "", "", "KIP-853; D2", node_list=True
).declare("Controllers from which a node discovers the leader of the metadata log; empty: all controllers.")
CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS = _quorum(
    "controller.quorum.election.timeout.ms", 1_000, "ms", "KIP-595", maximum=INT_MAX
).declare("Shortest time that a candidate waits for votes; the actual time is random, up to twice this.")
CONTROLLER_QUORUM_FETCH_TIMEOUT_MS = _quorum(
    "controller.quorum.fetch.timeout.ms", 2_000, "ms", "KIP-595", maximum=INT_MAX
).declare(
    "Time without a response of the leader after which a voter starts an election; a leader resigns after 1.5 times "
    "this without fetches from a majority."
)
CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS = _quorum(
    "controller.quorum.election.backoff.max.ms", 1_000, "ms", "KIP-595", maximum=INT_MAX
).declare("Longest random wait after a lost election before the next one.")
CONTROLLER_QUORUM_FETCH_MAX_BYTES = _quorum(
    "controller.quorum.fetch.max.bytes", 1_048_576, "bytes", "KIP-1219", maximum=INT_MAX
).declare("Bytes of the metadata log that a node requests in one fetch; a larger first batch is still returned.")
CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES = _quorum(
    "controller.quorum.fetch.snapshot.max.bytes", 1_048_576, "bytes", "KIP-1219", maximum=INT_MAX
).declare("Bytes of a snapshot of the metadata log that a node requests in one fetch.")
CONTROLLER_QUORUM_AUTO_JOIN_ENABLE = _quorum(
    "controller.quorum.auto.join.enable", False, "", "KIP-853; Kafka 4.2.0, KAFKA-19078"
).declare("Whether a controller without a vote replaces its former disk as a voter, or adds itself; not if static.")
METADATA_SNAPSHOT_BYTES = _quorum(
    "metadata.log.max.record.bytes.between.snapshots", 20_971_520, "bytes", "KIP-630"
).declare("Bytes of records since the last snapshot of the metadata log after which a node takes the next one.")
METADATA_SNAPSHOT_INTERVAL_MS = _quorum(
    "metadata.log.max.snapshot.interval.ms", 3_600_000, "ms", "Kafka", minimum=0
).declare(
    "Time since the last snapshot of the metadata log after which new records make a node take the next one; 0: never."
)
METADATA_RETENTION_BYTES = _quorum("metadata.max.retention.bytes", 104_857_600, "bytes", "Kafka", minimum=-1).declare(
    "Size of the metadata log above which a snapshot deletes the records that it covers; -1: never."
)
ALLOW_EVERYONE_IF_NO_ACL_FOUND = _node("allow.everyone.if.no.acl.found", False, "", "KIP-801").declare(
    "Whether the authorizer allows access to resources without access control entries."
)


def config_named(name: str, *, topic: bool = False) -> ConfigDef:
    """The declaration of config `name`. Raises ConfigError for an unknown name (`topic`: not topic-scoped)."""
    definition = CONFIGS.get(name)
    if definition is None or (topic and not definition.topic_scoped):
        names = sorted(known for known, other in CONFIGS.items() if other.topic_scoped or not topic)
        raise ConfigError("config", name, ", ".join(names), did_you_mean(name, names))
    return definition


def parse_config(name: str, value: object, *, topic: bool = False) -> ConfigValue:
    """The typed value of config `name`. Raises ConfigError, as `config_named`, also for a value."""
    return config_named(name, topic=topic).parse(value)


def config_text(value: ConfigValue) -> str:
    """A value as text, as in requests and records; `parse_config` parses it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


STRATEGY_OF_ENABLE = {False: "balanced", True: "proactive"}
"""H6: `unclean.leader.election.enable` as `unclean.recovery.strategy`."""
ENABLE_OF_STRATEGY = {"proactive": True, "balanced": False, "manual": False}
"""H7: `unclean.recovery.strategy` as `unclean.leader.election.enable`."""


def with_implied_strategy(changes: Mapping[str, Value], features: Features, strategy: str) -> Mapping[str, Value | str]:
    """`changes` of configs (None removes a value), with the strategy that a change of `unclean.leader.election.enable`
    implies (H6). The `strategy` in force stays if it agrees. Returns `changes` without unclean recovery, or if a
    strategy is set.
    """
    enable = changes.get(UNCLEAN_LEADER_ELECTION_ENABLE)
    if not features.unclean_recovery or enable is None or changes.get(UNCLEAN_RECOVERY_STRATEGY) is not None:
        return changes
    is_enabled = bool(CONFIGS[UNCLEAN_LEADER_ELECTION_ENABLE].parse(enable))
    if ENABLE_OF_STRATEGY[strategy] != is_enabled:
        strategy = STRATEGY_OF_ENABLE[is_enabled]
    elif UNCLEAN_RECOVERY_STRATEGY not in changes:
        return changes
    return {**changes, UNCLEAN_RECOVERY_STRATEGY: strategy}


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The static configuration of a cluster's nodes: its initial generation, a typed value for every config, the names
    of the rules of Kafka's that it follows (`protocol/kafka_rules.py`), and the release whose rules are in force before
    `kip-966`.
    """

    generation: Generation = Generation.KIP_966
    values: Mapping[str, ConfigValue] = field(default_factory=lambda: {d.name: d.default for d in CONFIGS.values()})
    kafka_rules: frozenset[str] = frozenset()
    kafka_release: KafkaRelease = NEWEST

    @classmethod
    def of(
        cls,
        generation: Generation,
        overrides: Mapping[str, object] | None = None,
        kafka_rules: Iterable[str] = (),
        kafka_release: KafkaRelease = NEWEST,
    ) -> ClusterConfig:
        """The defaults with `overrides` and `kafka_rules`. Raises ConfigError for unknown configs and rules, values
        that are not allowed, and static voters together with bootstrap servers. Without controllers that assign
        producer ids, producers are not idempotent by default.
        """
        rules = frozenset(kafka_rules)
        if not rules <= KAFKA_RULES.keys():
            raise ConfigError("kafka_rules", sorted(rules), f"any of {', '.join(KAFKA_RULES)}")
        values = cls(generation).values
        if generation.features.metadata_in_store:
            values = {**values, ENABLE_IDEMPOTENCE: False}
        parsed = {name: parse_config(name, value) for name, value in (overrides or {}).items()}
        voters = parsed.get(CONTROLLER_QUORUM_VOTERS)
        if voters and parsed.get(CONTROLLER_QUORUM_BOOTSTRAP_SERVERS):
            allowed = f"none where {CONTROLLER_QUORUM_BOOTSTRAP_SERVERS} is set"
            raise ConfigError(CONTROLLER_QUORUM_VOTERS, voters, allowed)
        strategy = str(values[UNCLEAN_RECOVERY_STRATEGY])
        parsed_values = {**values, **with_implied_strategy(parsed, generation.features, strategy)}
        return cls(generation, parsed_values, rules, kafka_release)

    @property
    def release_name(self) -> str | None:
        """The release of Kafka whose rules are in force, None in a generation that no release has."""
        return self.kafka_release.value if self.generation in RELEASED else None

    def int_value(self, name: str) -> int:
        """The value of an integer config, in the unit of its name."""
        return int(self.values[name])
