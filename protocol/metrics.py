"""The metrics, each declared once; the reference page, the help texts of exported series and the names that scenarios
expect are read from here.

`CONTROLLER_METRICS` are what a controller measures (requirements I1-I10, D34), on either engine. On ray a node exports
`NODE_METRICS`, and the process that polls the nodes `POLLED_METRICS` (`actors/metrics.py`). A metric that Kafka has too
is named after it: the domain of its MBean and its name, or attribute, in snake case. The dashboard, the rules and the
scrape configuration (`experiments/monitoring`) are made of the same declarations.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "summary", "histogram"]


class Metric(NamedTuple):
    """The declaration of one metric.

    `unit` is that of its values, `text` what they are in a few words, `source` items of docs/requirements.md (empty:
    none), `detail` what else a reader of them needs, `mbean` what Kafka names it (empty: Kafka has no such metric).
    There is a series for each combination of values of `labels`, beside the labels that all series of a node have.
    """

    kind: Kind
    name: str
    unit: str
    text: str
    source: str = ""
    detail: str = ""
    labels: tuple[str, ...] = ()
    mbean: str = ""

    @property
    def series(self) -> str:
        """The name under which Prometheus stores it; a histogram has `_bucket`, `_count` and `_sum` behind it."""
        return f"ray_{self.name.replace('.', '_')}{'_total' if self.kind == 'counter' else ''}"

    @property
    def help(self) -> str:
        """Unit and meaning, the help text of a series."""
        return f"{self.unit}: {self.text}"

    def declare(self, among: dict[str, Metric]) -> str:
        among[self.name] = self
        return self.name


CONTROLLER_METRICS: dict[str, Metric] = {}
NODE_METRICS: dict[str, Metric] = {}
POLLED_METRICS: dict[str, Metric] = {}
MAX_PARTITION_SERIES = 1_000
"""The number of partitions up to which a node exports series of each."""


def _controller(
    kind: Kind, name: str, unit: str, text: str, source: str = "", detail: str = "", mbean: str = ""
) -> str:
    declared = Metric(kind, f"kafka.controller.{name}", unit, text, source, detail, mbean=mbean)
    return declared.declare(CONTROLLER_METRICS)


_gauge = partial(_controller, "gauge")
_counter = partial(_controller, "counter")
_summary = partial(_controller, "summary")
_PER_PARTITION = ("topic", "partition")
_CONTROLLER = "kafka.controller:type=KafkaController,name="
_STATS = "kafka.controller:type=ControllerStats,name="
_RAFT = "kafka.server:type=raft-metrics,attribute="
_REPLICA_MANAGER = "kafka.server:type=ReplicaManager,name="
_TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
_of_partition = partial(Metric, "gauge", labels=_PER_PARTITION)

_RECOVERY = (
    "0 where recovery is off: those generations elect by the rules of `partition_change.py`. Where it is on, a "
    "partition is under recovery as long as its strategy calls for one, even while no replica is active, or members of "
    "the last known ELR are waited for; and while a recovery runs that a user requested. I3 and I4 have no partition "
    "in common (I7)."
)
_NEEDS_USER = (
    "A leaderless partition that gets a leader only through a user's command: an election, a reassignment, a config. "
    "Where recovery is on these are the partitions for which `recovery_decisions.py` waits for a user, without those "
    "that are being recovered for one. Where it is off, it is a partition that would have no leader even if all its "
    "replicas became active. A partition does not count where ISR or ELR has a member; where "
    "`unclean.leader.election.enable` holds for the topic; in `kip-966-elr` where `last_known_elr` has exactly one "
    "broker. `decide` gives the answer, so it follows the rules in force."
)
_VOTERS = "By the newest set of voters, whether it is committed or not (`protocol/quorum/describe.py`)."
_OBSERVERS = "Brokers, and controllers without a vote, as long as their last fetch is at most five minutes ago."
_FAILOVER = (
    "A failover is the fencing of a broker that led partitions. It ends when every active broker has sent a fetch or a "
    "heartbeat with an offset behind the last record of the failover. One during which no broker is active has no "
    "latency."
)
_REASSIGNMENT = (
    "Observed once per partition; 0 for one that completes in the record that starts it. A reassignment that replaces "
    "another counts from its own start, a cancelled one does not count, and one from before this controller became "
    "active counts from that moment."
)

UNDER_MIN_ISR = _gauge("global_under_min_isr_partition_count", "partitions", "ISR below effective min ISR", "I2")
OFFLINE = _gauge(
    "offline_partitions_count", "partitions", "without a leader", "I8", mbean=f"{_CONTROLLER}OfflinePartitionsCount"
)
UNCLEAN_RECOVERY = _gauge("unclean_recovery_partitions_count", "partitions", "under unclean recovery", "I3", _RECOVERY)
MANUAL_ELECTION_REQUIRED = _gauge(
    "manual_leader_election_required_partition_count", "partitions", "wait for a user", "I4", _NEEDS_USER
)
REASSIGNING = _gauge("reassigning_partitions_count", "partitions", "with a reassignment in progress")
UNCLEAN_RECOVERY_FINISHED = _counter(
    "unclean_recovery_finished_count", "recoveries", "unclean recoveries done", "I5", _RECOVERY
)
UNCLEAN_ELECTIONS = _counter(
    "unclean_leader_elections_count",
    "elections",
    "acknowledged records may be lost",
    "I8",
    mbean=f"{_STATS}UncleanLeaderElectionsPerSec",
)
VOTERS = _gauge(
    "raft.number_of_voters", "controllers", "voters of the quorum", "I9", _VOTERS, f"{_RAFT}number-of-voters"
)
OBSERVERS = _gauge(
    "raft.number_of_observers",
    "replicas",
    "fetch the metadata log without a vote",
    "I9",
    _OBSERVERS,
    f"{_RAFT}number-of-observers",
)
UNCOMMITTED_VOTER_CHANGE = _gauge(
    "raft.uncommitted_voter_change",
    "changes",
    "of the quorum, not yet committed",
    "I9",
    _VOTERS,
    f"{_RAFT}uncommitted-voter-change",
)
IGNORED_STATIC_VOTERS = _gauge(
    "raft.ignored_static_voters",
    "controllers",
    "configured, overridden by the log",
    "I9",
    _VOTERS,
    f"{_RAFT}ignored-static-voters",
)
ACTIVE_BROKERS = _gauge(
    "active_broker_count", "brokers", "registered and unfenced", mbean=f"{_CONTROLLER}ActiveBrokerCount"
)
FENCED_BROKERS = _gauge(
    "fenced_broker_count", "brokers", "registered and fenced", mbean=f"{_CONTROLLER}FencedBrokerCount"
)
PARTITIONS = _gauge("global_partition_count", "partitions", "of all topics", mbean=f"{_CONTROLLER}GlobalPartitionCount")
FAILOVER_LATENCY = _summary(
    "failover_latency_ms", "ms", "until all active brokers have applied a fencing", "I10", _FAILOVER
)
FAILOVER_RECORDS = _summary("failover_records", "records", "metadata records written by a failover", "I10")
ALTER_PARTITION_BATCH = _summary("alter_partition_batch_size", "partitions", "proposed in one AlterPartition", "I10")
SHUTDOWN_TIME = _summary("controlled_shutdown_time_ms", "ms", "from a broker's request until it may shut down", "I10")
REASSIGNMENT_DELAY = _summary(
    "reassignment_completion_delay_ms", "ms", "from start to completion", "I10", _REASSIGNMENT
)
_PARTS = {"_count": "number of values in ", "_sum": "sum in ", "_last": "last value in ", "_max": "greatest value in "}
CLUSTER_HELP = {
    f"{metric.name}{part}": f"{words}{metric.help}"
    for metric in CONTROLLER_METRICS.values()
    for part, words in (_PARTS if metric.kind == "summary" else {"": ""}).items()
}
"""The help text of each metric that a controller has once; a summary is four of them."""
CLUSTER_METRICS = tuple(CLUSTER_HELP)
RAFT_METRICS = (VOTERS, OBSERVERS, UNCOMMITTED_VOTER_CHANGE, IGNORED_STATIC_VOTERS)
SUMMARIES = tuple(metric.name for metric in CONTROLLER_METRICS.values() if metric.kind == "summary")
ELECTABLE_LEADERS = _of_partition(
    "kafka.controller.electable_leaders_count", "brokers", "ISR and ELR together", "I1"
).declare(CONTROLLER_METRICS)
PARTITION_METRICS = (ELECTABLE_LEADERS,)
"""What a controller measures of each partition."""

_POLLED = (
    "The sum over a cluster is right while its nodes die and fail over. Ray serves the other gauges of a process that "
    "was killed for up to 20 s more, with their last values. Sums of them leave out such a node, and the controllers "
    "that are not active, by these two: "
    "`sum by (cluster) (ray_isray_high_watermark_lag * on (cluster, node) group_left ray_isray_node_running)`, "
    "`sum by (cluster) (ray_kafka_controller_offline_partitions_count * on (cluster, node) group_left "
    "ray_kafka_controller_active_controller_count)`."
)
_polled = partial(Metric, "gauge", detail=_POLLED)
_EVERY_5_S = "Counted every 5 s, over the replicas that the broker has then."
_of_broker = partial(Metric, "gauge", detail=_EVERY_5_S)
_OF_REPLICA_OF_QUORUM = (
    "Each controller and each broker has a replica of the metadata log, and reports what that replica knows. `v3` has "
    "none."
)
_of_quorum = partial(Metric, "gauge", detail=_OF_REPLICA_OF_QUORUM)
_APPENDED = (
    "Of the batches that the broker appended as leader. Bytes are those of the payload, without the batch's header."
)
_LEADERS_CHANGES = (
    "Proposals of the leader that the controller has committed; a change that the controller makes by itself, when it "
    "fences a broker, is none."
)

MESSAGES_SENT = Metric(
    "counter", "isray_messages_sent", "messages", "those that the node sent, by type", labels=("type",)
).declare(NODE_METRICS)
PRODUCE_REQUESTS = Metric(
    "counter", "isray_produce_requests", "requests", "produce requests that a broker took, by acks", labels=("acks",)
).declare(NODE_METRICS)
ELECTIONS = Metric(
    "counter",
    "isray_elections",
    "elections",
    "leaders that the controller elected, the first one included",
    detail="A restarted controller knows no earlier epochs, and counts from a partition's second change on.",
    labels=_PER_PARTITION,
).declare(NODE_METRICS)
ISR_SIZE = _of_partition("isray_isr_size", "brokers", "those in the ISR, by the controller's record").declare(
    NODE_METRICS
)
ELR_SIZE = _of_partition("isray_elr_size", "brokers", "eligible leader replicas, by the controller's record").declare(
    NODE_METRICS
)
HIGH_WATERMARK_LAG = _of_partition(
    "isray_high_watermark_lag", "records", "uncommitted ones at the leader; 0 on a follower"
).declare(NODE_METRICS)
ELECTABLE_LEADERS_COUNT = _of_partition(
    ELECTABLE_LEADERS.replace(".", "_"), "brokers", "those in ISR or ELR, by the controller's record"
).declare(NODE_METRICS)
LOG_END_OFFSET = _of_partition(
    "kafka_log_log_end_offset",
    "offset",
    "end of the broker's log",
    mbean="kafka.log:type=Log,name=LogEndOffset",
).declare(NODE_METRICS)
HIGH_WATERMARK = _of_partition("isray_high_watermark", "offset", "of the leader; a follower has no series").declare(
    NODE_METRICS
)
LEADER_COUNT = _of_broker(
    "kafka_server_leader_count", "partitions", "those that the broker leads", mbean=f"{_REPLICA_MANAGER}LeaderCount"
).declare(NODE_METRICS)
PARTITION_COUNT = _of_broker(
    "kafka_server_partition_count", "replicas", "those on the broker", mbean=f"{_REPLICA_MANAGER}PartitionCount"
).declare(NODE_METRICS)
UNDER_REPLICATED = _of_broker(
    "kafka_server_under_replicated_partitions",
    "partitions",
    "led by the broker, with fewer members in the ISR than replicas; replicas that a reassignment adds do not count",
    mbean=f"{_REPLICA_MANAGER}UnderReplicatedPartitions",
).declare(NODE_METRICS)
BELOW_MIN_ISR = _of_broker(
    "kafka_server_under_min_isr_partition_count",
    "partitions",
    "led by the broker, with an ISR below effective min ISR",
    mbean=f"{_REPLICA_MANAGER}UnderMinIsrPartitionCount",
).declare(NODE_METRICS)
AT_MIN_ISR = _of_broker(
    "kafka_server_at_min_isr_partition_count",
    "partitions",
    "led by the broker, with an ISR of exactly effective min ISR",
    mbean=f"{_REPLICA_MANAGER}AtMinIsrPartitionCount",
).declare(NODE_METRICS)
ISR_SHRINKS = Metric(
    "counter",
    "kafka_server_isr_shrinks",
    "changes",
    "of an ISR by its leader, with members that leave",
    detail=_LEADERS_CHANGES,
    mbean=f"{_REPLICA_MANAGER}IsrShrinksPerSec",
).declare(NODE_METRICS)
ISR_EXPANDS = Metric(
    "counter",
    "kafka_server_isr_expands",
    "changes",
    "of an ISR by its leader, with members that join",
    detail=_LEADERS_CHANGES,
    mbean=f"{_REPLICA_MANAGER}IsrExpandsPerSec",
).declare(NODE_METRICS)
BYTES_IN = Metric(
    "counter",
    "kafka_server_bytes_in",
    "bytes",
    "that producers wrote, by topic",
    detail=_APPENDED,
    labels=("topic",),
    mbean=f"{_TOPICS}BytesInPerSec",
).declare(NODE_METRICS)
MESSAGES_IN = Metric(
    "counter",
    "kafka_server_messages_in",
    "records",
    "that producers wrote, by topic",
    detail=_APPENDED,
    labels=("topic",),
    mbean=f"{_TOPICS}MessagesInPerSec",
).declare(NODE_METRICS)
REQUEST_MS = Metric(
    "histogram",
    "kafka_network_total_time_ms",
    "ms",
    "from the arrival of a request until its response is sent, by kind of request",
    detail=(
        "Waiting in the node's queue, for the high watermark or for records included. `FetchConsumer` is what a "
        "consumer sends. Fetches of followers are not pairs of request and response (`protocol/messages/data.py`), and "
        "produce requests with acks=0 have no response."
    ),
    labels=("request",),
    mbean="kafka.network:type=RequestMetrics,name=TotalTimeMs",
).declare(NODE_METRICS)
REQUEST_MS_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)
"""The upper bounds of the buckets of `REQUEST_MS`, ms."""
RAFT_LEADER = _of_quorum(
    "kafka_server_raft_current_leader",
    "node id",
    "of the leader of the quorum; -1 while none is known",
    mbean=f"{_RAFT}current-leader",
).declare(NODE_METRICS)
RAFT_EPOCH = _of_quorum(
    "kafka_server_raft_current_epoch", "epoch", "of the quorum", mbean=f"{_RAFT}current-epoch"
).declare(NODE_METRICS)
RAFT_HIGH_WATERMARK = _of_quorum(
    "kafka_server_raft_high_watermark", "offset", "of the metadata log", mbean=f"{_RAFT}high-watermark"
).declare(NODE_METRICS)
RAFT_LOG_END = _of_quorum(
    "kafka_server_raft_log_end_offset", "offset", "end of the metadata log", mbean=f"{_RAFT}log-end-offset"
).declare(NODE_METRICS)
QUORUM_REPLICA_METRICS = (RAFT_LEADER, RAFT_EPOCH, RAFT_HIGH_WATERMARK, RAFT_LOG_END)
NODE_RUNNING = _polled("isray_node_running", "nodes", "1 while the node's process runs, 0 once it has ended").declare(
    POLLED_METRICS
)
ACTIVE_CONTROLLER = _polled(
    "kafka_controller_active_controller_count",
    "controllers",
    "1 on the active controller, 0 elsewhere",
    mbean=f"{_CONTROLLER}ActiveControllerCount",
).declare(POLLED_METRICS)


def exported() -> tuple[Metric, ...]:
    """All metrics that a cluster on Ray serves, each as it is exported: a summary is four gauges."""
    clusters = tuple(
        Metric("gauge", name, declared.unit, text.partition(": ")[2], detail=declared.detail, mbean=declared.mbean)
        for name, text in CLUSTER_HELP.items()
        for declared in (_declaration_of(name),)
    )
    return (*clusters, *NODE_METRICS.values(), *POLLED_METRICS.values())


def _declaration_of(name: str) -> Metric:
    """The declaration of a metric of the cluster, or of the summary that it is a part of."""
    return CONTROLLER_METRICS.get(name) or CONTROLLER_METRICS[name.rpartition("_")[0]]
