"""`isray topics`: kafka-topics.sh. Create, list, describe, delete and alter topics (J12, J13, J19).

Flags, texts and layout are those of Kafka's tool. `--describe` adds the columns Elr, LastKnownElr and LastKnownLeader,
`N/A` where the cluster's feature level does not have them; with `--topics-with-overrides` it prints the lines of topics
only. `--topic` is a regular expression that matches whole names, with commas between alternatives, except with
`--create`. Kafka does not have `--remove-partitions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from experiments.cli.cluster_access import (
    BootstrapServer,
    Target,
    administering,
    exit_if_failed,
    numbers,
    on_cluster,
    require,
)
from experiments.cli.output import flag, option, print_json, print_result
from experiments.cli.parse import name_values, one_of, only_with
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.explorer.values import message_fields
from experiments.support.errors import InputError, MissingInput
from protocol.config import INT_MAX, SHORT_MAX
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, TopicPartition
from protocol.messages.admin import Result
from protocol.messages.configs import ConfigResourceType, ConfigSource
from protocol.messages.partitions import OngoingPartitionReassignment
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsTopic,
    DescribedPartition,
    DescribedTopic,
    RemovePartitionsTopic,
    ReplicaAssignment,
)

FAILING = "Error while executing topic command"
OVERRIDES = "--topics-with-overrides"
UnderReplicated = Annotated[bool, flag("--under-replicated-partitions", "Only those with replicas out of the ISR.")]
UnderMinIsr = Annotated[
    bool, flag("--under-min-isr-partitions", "Only those with fewer than min.insync.replicas in sync.")
]
AtMinIsr = Annotated[bool, flag("--at-min-isr-partitions", "Only those with exactly min.insync.replicas in sync.")]
PageSize = Annotated[
    int, option("N", "With --describe: partitions per response.", min=1, max=MAX_PARTITIONS_PER_RESPONSE)
]
ASSIGNMENT = "broker ids separated by ':', partitions by ','; as many different brokers for each partition"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command, by their names; `reports` are those that select what `--describe` shows, `page` is
    `--partition-size-limit-per-response`.
    """

    topic: str | None
    topic_id: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: tuple[tuple[int, ...], ...]
    config: Mapping[str, str]
    if_exists: bool
    if_not_exists: bool
    remove_partitions: int | None
    reports: frozenset[str]
    page: int
    as_json: bool


@on_cluster(server=BootstrapServer)
def topics(
    target: Target,
    create: Annotated[bool, flag("--create", "Create a topic.")] = False,
    list_: Annotated[bool, flag("--list", "List the names of topics.")] = False,
    describe: Annotated[bool, flag("--describe", "Describe topics and their partitions.")] = False,
    delete: Annotated[bool, flag("--delete", "Delete topics.")] = False,
    alter: Annotated[bool, flag("--alter", "Add or remove partitions.")] = False,
    topic: Annotated[str | None, option("TOPIC", "A topic; for all but --create a regular expression.")] = None,
    topic_id: Annotated[str | None, option("UUID", "With --describe: the topic of this id.")] = None,
    partitions: Annotated[int | None, option("N", "Their number.", min=1, max=INT_MAX)] = None,
    replication_factor: Annotated[int | None, option("N", "Replicas of each partition.", min=1, max=SHORT_MAX)] = None,
    replica_assignment: Annotated[
        str | None, option("0:1:2,1:2:0", "Replicas of each partition, the preferred leader first.")
    ] = None,
    config: Annotated[list[str] | None, option("NAME=VALUE", "With --create: a config; may be repeated.")] = None,
    if_exists: Annotated[bool, flag("--if-exists", "Succeed where no topic matches.")] = False,
    if_not_exists: Annotated[bool, flag("--if-not-exists", "Succeed where the topic exists.")] = False,
    remove_partitions: Annotated[int | None, option("N", "With --alter: remove the last N partitions.", min=1)] = None,
    under_replicated: UnderReplicated = False,
    unavailable: Annotated[bool, flag("--unavailable-partitions", "Only those without leader.")] = False,
    under_min_isr: UnderMinIsr = False,
    at_min_isr: AtMinIsr = False,
    with_overrides: Annotated[bool, flag("--topics-with-overrides", "Only topics with configs of their own.")] = False,
    partition_size_limit_per_response: PageSize = MAX_PARTITIONS_PER_RESPONSE,
) -> None:
    """Create, list, describe, delete and alter topics."""
    reports = {
        "--under-replicated-partitions": under_replicated,
        "--unavailable-partitions": unavailable,
        "--under-min-isr-partitions": under_min_isr,
        "--at-min-isr-partitions": at_min_isr,
        OVERRIDES: with_overrides,
    }
    action = one_of({"--create": create, "--list": list_, "--describe": describe, "--delete": delete, "--alter": alter})
    options = Options(
        topic,
        topic_id,
        partitions,
        replication_factor,
        _assignment(replica_assignment),
        name_values("--config", config),
        if_exists,
        if_not_exists,
        remove_partitions,
        frozenset(option for option, is_given in reports.items() if is_given),
        partition_size_limit_per_response,
        target.as_json,
    )
    _check(action, options)
    with administering(target, FAILING) as admin:
        _ACTIONS[action](admin, options)


def _check(action: str, options: Options) -> None:
    """InputError where an option does not go with the action, or one that it needs is missing."""
    placing = {"--partitions": options.partitions, "--replica-assignment": options.replica_assignment}
    creating = {"--replication-factor": options.replication_factor, "--config": options.config}
    only_with("--create|--alter", action, placing)
    only_with("--create", action, creating | {"--if-not-exists": options.if_not_exists})
    only_with("--alter|--delete|--describe", action, {"--if-exists": options.if_exists})
    only_with("--alter", action, {"--remove-partitions": options.remove_partitions})
    only_with("--describe", action, dict.fromkeys(sorted(options.reports), True) | {"--topic-id": options.topic_id})
    is_paged = options.page != MAX_PARTITIONS_PER_RESPONSE
    only_with("--describe", action, {"--partition-size-limit-per-response": is_paged})
    if options.topic is not None and options.topic_id is not None:
        raise InputError("--topic-id", "", "--topic-id with --topic", "one of the two")
    if action in ("--create", "--delete", "--alter") and not options.topic:
        raise MissingInput("--topic", f"a topic with {action}")
    if len(options.reports) > 1:
        raise InputError("--describe", "", " ".join(sorted(options.reports)), "at most one of them")
    if action == "--create" and options.replica_assignment and (options.partitions or options.replication_factor):
        allowed = "either --replica-assignment, or --partitions and --replication-factor"
        found = "--replica-assignment with --partitions or --replication-factor"
        raise InputError("--replica-assignment", "", found, allowed)
    if action == "--alter" and (options.partitions is None) == (options.remove_partitions is None):
        found = f"{'neither' if options.partitions is None else 'both'} of --partitions and --remove-partitions"
        raise InputError("--alter", "", found, "one of --partitions, --remove-partitions")
    if options.topic and action != "--create":
        _pattern(options.topic)  # refuses a wrong one before the cluster is asked


def _assignment(option: str | None) -> tuple[tuple[int, ...], ...]:
    if option is None:
        return ()
    try:
        found = tuple(tuple(int(broker) for broker in part.split(":")) for part in option.split(","))
    except ValueError as error:
        raise InputError("--replica-assignment", "", option, ASSIGNMENT) from error
    if not all(
        len(set(part)) == len(part) == len(found[0]) and 0 <= min(part) <= max(part) <= INT_MAX for part in found
    ):
        raise InputError("--replica-assignment", "", option, ASSIGNMENT)
    return found


def _pattern(topic: str) -> re.Pattern[str]:
    try:
        return re.compile(topic.strip().replace(",", "|"))
    except re.error as error:
        raise InputError("--topic", "", topic, f"a regular expression ({error})") from error


def _matching(admin: AdminClient, topic: str | None) -> list[str]:
    """The names of the topics that `--topic` matches; of all topics without it."""
    names = sorted(found.name for found in admin.describe_topics())
    return names if topic is None else [name for name in names if _pattern(topic).fullmatch(name)]


def _chosen(admin: AdminClient, options: Options) -> list[str]:
    """The topics that `--topic` or `--topic-id` selects; AdminError if there is none, unless `--if-exists` is given."""
    if options.topic_id is not None:
        chosen = [found.name for found in admin.describe_topics() if found.topic_id == options.topic_id]
        error, wanted = ErrorCode.UNKNOWN_TOPIC_ID, f"TopicId '{options.topic_id}'"
    else:
        chosen = _matching(admin, options.topic)
        error, wanted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{options.topic}'"
    if not chosen and not options.if_exists and (options.topic, options.topic_id) != (None, None):
        raise AdminError(error, f"{wanted} does not exist as expected")
    return chosen


def _create(admin: AdminClient, options: Options) -> None:
    assert options.topic is not None
    wanted = CreatableTopic(
        name=options.topic,
        num_partitions=options.partitions or -1,
        replication_factor=options.replication_factor or -1,
        assignments=tuple(
            ReplicaAssignment(partition_index=index, broker_ids=replicas)
            for index, replicas in enumerate(options.replica_assignment)
        ),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in options.config.items()),
    )
    if "." in options.topic or "_" in options.topic:
        typer.echo("WARNING: names with '.' and names with '_' can collide in metrics: use one of the two.", err=True)
    [result] = admin.create_topics(wanted)
    is_there = result.error is ErrorCode.TOPIC_ALREADY_EXISTS and options.if_not_exists
    if options.as_json and (is_there or result.error is ErrorCode.NONE):
        print_json(message_fields(result) | {"created": not is_there})
    elif not is_there:
        require(result)
        typer.echo(f"Created topic {options.topic}.")


def _list(admin: AdminClient, options: Options) -> None:
    chosen = _matching(admin, options.topic)
    print_result(options.as_json, chosen, typer.echo, "\n".join(chosen))


def _delete(admin: AdminClient, options: Options) -> None:
    chosen = _chosen(admin, options)
    _finish(options, chosen, admin.delete_topics(chosen) if chosen else ())


def _alter(admin: AdminClient, options: Options) -> None:
    chosen = _chosen(admin, options)
    counts = {topic.name: len(topic.partitions) for topic in admin.describe_topics(chosen)} if chosen else {}
    results: Sequence[Result] = ()
    if (removed := options.remove_partitions) is not None:
        last = {name: tuple(range(max(0, count - removed), count)) for name, count in counts.items()}
        results = admin.remove_partitions(*(RemovePartitionsTopic(name=name, partitions=last[name]) for name in chosen))
    elif options.partitions is not None:
        given, count = options.replica_assignment, options.partitions
        added = {name: given[counts[name] :] if given else None for name in chosen}
        results = admin.create_partitions(
            *(CreatePartitionsTopic(name=name, count=count, assignments=new) for name, new in added.items())
        )
    _finish(options, chosen, results)


def _finish(options: Options, topics: Sequence[str], results: Sequence[Result]) -> None:
    """Reports the results of topics; exit code 1 if one failed."""
    if options.as_json:
        print_json({"topics": [message_fields(result) for result in results]})
    exit_if_failed((f"{FAILING}: {name}", result) for name, result in zip(topics, results, strict=True))


def _describe(admin: AdminClient, options: Options) -> None:
    chosen = _chosen(admin, options)
    described = sorted(admin.describe_topics(chosen, options.page), key=lambda topic: topic.name) if chosen else []
    for topic in described:
        require(topic)
    configs = _overrides(admin, chosen)
    moves = _moves(admin)
    live = {broker.broker_id for broker in admin.describe_cluster().brokers if not broker.is_fenced}
    reports, documents = options.reports - {OVERRIDES}, []
    for topic in described:
        if OVERRIDES in options.reports and not configs[topic.name]:
            continue
        items = [(item, moves.get(TopicPartition(topic.name, item.partition_index))) for item in topic.partitions]
        shown = [(item, move) for item, move in items if _is_shown(reports, item, move, live)]
        partitions = [message_fields(item) for item, _ in shown]
        documents.append(message_fields(topic) | {"configs": configs[topic.name], "partitions": partitions})
        if not reports and not options.as_json:
            typer.echo(_topic_line(topic, configs[topic.name], _replication_factor(*items[0])))
        for item, move in () if options.as_json or options.reports == {OVERRIDES} else shown:
            typer.echo(_partition_line(topic.name, item, move))
    if options.as_json:
        print_json(documents)


def _overrides(admin: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The configs of each topic that differ from the defaults."""
    configs = {}
    for result in admin.describe_configs([(ConfigResourceType.TOPIC, name) for name in names]) if names else ():
        require(result)
        changed = (config for config in result.configs if config.source is not ConfigSource.DEFAULT_CONFIG)
        configs[result.resource_name] = {config.name: config.value for config in changed}
    return configs


def _moves(admin: AdminClient) -> Mapping[TopicPartition, OngoingPartitionReassignment]:
    """Reassignments in progress; none where the principal is not authorized to list them, as in Kafka's tool."""
    try:
        return admin.list_reassignments()
    except AdminError as error:
        if error.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return {}
        raise


def _replication_factor(item: DescribedPartition, move: OngoingPartitionReassignment | None) -> int:
    return len(item.replica_nodes) - (0 if move is None else len(move.adding_replicas))


def _is_shown(
    reports: frozenset[str], item: DescribedPartition, move: OngoingPartitionReassignment | None, live: set[int]
) -> bool:
    is_led, in_sync = item.leader_id != NO_LEADER, len(item.isr_nodes)
    holds = {
        "--under-replicated-partitions": in_sync < _replication_factor(item, move),
        "--unavailable-partitions": not is_led or item.leader_id not in live,
        "--under-min-isr-partitions": not is_led or in_sync < item.min_insync_replicas,
        "--at-min-isr-partitions": in_sync == item.min_insync_replicas,
    }
    return not reports or any(holds[report] for report in reports)


def _topic_line(topic: DescribedTopic, configs: Mapping[str, str], factor: int) -> str:
    fields = {
        "Topic": topic.name,
        "TopicId": topic.topic_id,
        "PartitionCount": len(topic.partitions),
        "ReplicationFactor": factor,
        "Configs": ",".join(f"{key}={value}" for key, value in configs.items()),
    }
    return "\t".join(f"{key}: {value}" for key, value in fields.items())


def _partition_line(topic: str, item: DescribedPartition, move: OngoingPartitionReassignment | None) -> str:
    fields = {
        "Topic": topic,
        "Partition": str(item.partition_index),
        "Leader": _leader(item.leader_id),
        "Replicas": numbers(item.replica_nodes),
        "Isr": numbers(item.isr_nodes),
    }
    if move is not None:
        fields["Adding Replicas"] = numbers(move.adding_replicas)
        fields["Removing Replicas"] = numbers(move.removing_replicas)
    for name, brokers in (("Elr", item.eligible_leader_replicas), ("LastKnownElr", item.last_known_elr)):
        fields[name] = "N/A" if brokers is None else numbers(brokers)
    fields["LastKnownLeader"] = "N/A" if item.last_known_leader is None else _leader(item.last_known_leader)
    return "".join(f"\t{key}: {value}" for key, value in fields.items())


def _leader(broker: int) -> str:
    return "none" if broker == NO_LEADER else str(broker)


_ACTIONS: Mapping[str, Callable[[AdminClient, Options], None]] = {
    "--create": _create,
    "--list": _list,
    "--describe": _describe,
    "--delete": _delete,
    "--alter": _alter,
}
