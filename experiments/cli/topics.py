"""`isray topics`: kafka-topics.sh. Create, list, describe, delete and alter topics (J12, J13, J19).

Flags, words and layout are Kafka's. `--describe` adds the columns Elr, LastKnownElr and LastKnownLeader, `N/A` where
the cluster's feature level has none of them. `--topic` is a regular expression that matches whole names, alternatives
by commas too, except with `--create`. `--alter --remove-partitions N`, which Kafka does not have, removes the last N.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from experiments.cli.target import (
    Bootstrap,
    CommandConfig,
    Json,
    Name,
    Principal,
    administering,
    document,
    numbers,
    one_of,
    only_with,
    print_json,
    target,
)
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.config import INT_MAX, SHORT_MAX
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, TopicPartition
from protocol.messages.admin import Result
from protocol.messages.configs import ConfigResourceType, ConfigSource
from protocol.messages.partitions import OngoingPartitionReassignment
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsTopic,
    DescribedPartition,
    DescribedTopic,
    RemovePartitionsTopic,
    ReplicaAssignment,
)

FAILING = "Error while executing topic command"
Flag = Annotated[bool, typer.Option()]
Count = Annotated[int | None, typer.Option(min=1, max=INT_MAX, metavar="N")]


@dataclass(frozen=True, slots=True)
class Ask:
    """The options of the command, under their names."""

    topic: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: tuple[tuple[int, ...], ...]
    config: Mapping[str, str]
    if_exists: bool
    if_not_exists: bool
    remove_partitions: int | None
    reports: frozenset[str]
    as_json: bool


def topics(
    create: Flag = False,
    list_: Annotated[bool, typer.Option("--list")] = False,
    describe: Flag = False,
    delete: Flag = False,
    alter: Flag = False,
    topic: Annotated[str | None, typer.Option(help="A topic; for all but --create a regular expression.")] = None,
    partitions: Count = None,
    replication_factor: Annotated[int | None, typer.Option(min=1, max=SHORT_MAX, metavar="N")] = None,
    replica_assignment: Annotated[
        str | None, typer.Option(metavar="0:1:2,1:2:0", help="Replicas of each partition, the leader first.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --create; several.")] = None,
    if_exists: Flag = False,
    if_not_exists: Flag = False,
    remove_partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --alter: remove the last N partitions.")
    ] = None,
    under_replicated_partitions: Flag = False,
    unavailable_partitions: Flag = False,
    under_min_isr_partitions: Flag = False,
    at_min_isr_partitions: Flag = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Create, list, describe, delete and alter topics."""
    wanted = target(bootstrap_server, name, command_config, principal, as_json)
    reports = {
        "--under-replicated-partitions": under_replicated_partitions,
        "--unavailable-partitions": unavailable_partitions,
        "--under-min-isr-partitions": under_min_isr_partitions,
        "--at-min-isr-partitions": at_min_isr_partitions,
    }
    action = one_of({"--create": create, "--list": list_, "--describe": describe, "--delete": delete, "--alter": alter})
    ask = Ask(
        topic=topic,
        partitions=partitions,
        replication_factor=replication_factor,
        replica_assignment=_assignment(replica_assignment),
        config=_configs(config or []),
        if_exists=if_exists,
        if_not_exists=if_not_exists,
        remove_partitions=remove_partitions,
        reports=frozenset(option for option, is_given in reports.items() if is_given),
        as_json=as_json,
    )
    _check(action, ask)
    with administering(wanted, FAILING) as admin:
        _ACTIONS[action](admin, ask)


def _check(action: str, ask: Ask) -> None:
    """What goes with what; InputError otherwise."""
    only_with("--create|--alter", action, {"--partitions": ask.partitions})
    only_with("--create|--alter", action, {"--replica-assignment": ask.replica_assignment})
    only_with("--create", action, {"--replication-factor": ask.replication_factor, "--config": ask.config or None})
    only_with("--create", action, {"--if-not-exists": ask.if_not_exists})
    only_with("--alter|--delete|--describe", action, {"--if-exists": ask.if_exists})
    only_with("--alter", action, {"--remove-partitions": ask.remove_partitions})
    only_with("--describe", action, dict.fromkeys(sorted(ask.reports), True))
    if action in ("--create", "--delete", "--alter") and not ask.topic:
        raise InputError("--topic", "", "none", f"a topic with {action}")
    if len(ask.reports) > 1:
        raise InputError("--describe", "", " ".join(sorted(ask.reports)), "at most one kind of partitions")
    if action == "--create" and ask.replica_assignment and (ask.partitions or ask.replication_factor):
        allowed = "either it, or --partitions and --replication-factor"
        raise InputError("--replica-assignment", "", "it with a count", allowed)
    if action == "--alter" and (ask.partitions is None) == (ask.remove_partitions is None):
        raise InputError("--alter", "", "both or none", "one of --partitions, --remove-partitions")
    if ask.topic and action != "--create":
        _pattern(ask.topic)


def _assignment(option: str | None) -> tuple[tuple[int, ...], ...]:
    allowed = "broker ids by ':', partitions by ','; as many different brokers for each partition"
    if option is None:
        return ()
    try:
        found = tuple(tuple(int(broker) for broker in part.split(":")) for part in option.split(","))
    except ValueError as error:
        raise InputError("--replica-assignment", "", option, allowed) from error
    if any(len(set(part)) != len(part) or len(part) != len(found[0]) for part in found):
        raise InputError("--replica-assignment", "", option, allowed)
    if any(not 0 <= broker <= INT_MAX for part in found for broker in part):
        raise InputError("--replica-assignment", "", option, allowed)
    return found


def _configs(options: Sequence[str]) -> dict[str, str]:
    configs = {}
    for option in options:
        key, found, value = option.partition("=")
        if not found or not key.strip():
            raise InputError("--config", "", option, "NAME=VALUE")
        configs[key.strip()] = value.strip()
    return configs


def _pattern(topic: str) -> re.Pattern[str]:
    try:
        return re.compile(topic.strip().replace(",", "|"))
    except re.error as error:
        raise InputError("--topic", "", topic, f"a regular expression ({error})") from error


def _chosen(admin: AdminClient, ask: Ask) -> list[str]:
    """The names of the topics that `--topic` means; AdminError where there is none and it must be there."""
    names = sorted(topic.name for topic in admin.describe_topics())
    if ask.topic is None:
        return names
    pattern = _pattern(ask.topic)
    chosen = [name for name in names if pattern.fullmatch(name)]
    if not chosen and not ask.if_exists:
        text = f"Topic '{ask.topic}' does not exist as expected"
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return chosen


def _create(admin: AdminClient, ask: Ask) -> None:
    assert ask.topic is not None
    wanted = CreatableTopic(
        name=ask.topic,
        num_partitions=ask.partitions or -1,
        replication_factor=ask.replication_factor or -1,
        assignments=tuple(
            ReplicaAssignment(partition_index=index, broker_ids=replicas)
            for index, replicas in enumerate(ask.replica_assignment)
        ),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in ask.config.items()),
    )
    if "." in ask.topic or "_" in ask.topic:
        typer.echo("WARNING: names with '.' and names with '_' can collide in metrics: use one of the two.", err=True)
    [result] = admin.create_topics(wanted)
    is_there = result.error is ErrorCode.TOPIC_ALREADY_EXISTS and ask.if_not_exists
    if ask.as_json and (is_there or result.error is ErrorCode.NONE):
        print_json(document(result) | {"created": not is_there})
    elif not is_there:
        _require(result)
        typer.echo(f"Created topic {ask.topic}.")


def _list(admin: AdminClient, ask: Ask) -> None:
    names = sorted(topic.name for topic in admin.describe_topics())
    chosen = names if ask.topic is None else [name for name in names if _pattern(ask.topic).fullmatch(name)]
    if ask.as_json:
        print_json(chosen)
    else:
        typer.echo("\n".join(chosen))


def _delete(admin: AdminClient, ask: Ask) -> None:
    chosen = _chosen(admin, ask)
    results = admin.delete_topics(chosen) if chosen else ()
    _finish(ask, dict(zip(chosen, results, strict=True)))


def _alter(admin: AdminClient, ask: Ask) -> None:
    chosen = _chosen(admin, ask)
    counts = {topic.name: len(topic.partitions) for topic in admin.describe_topics(chosen)} if chosen else {}
    results: Sequence[Result] = ()
    if ask.remove_partitions is not None:
        removed = ask.remove_partitions
        results = admin.remove_partitions(
            *(
                RemovePartitionsTopic(name=name, partitions=tuple(range(max(0, counts[name] - removed), counts[name])))
                for name in chosen
            )
        )
    elif ask.partitions is not None:
        results = admin.create_partitions(
            *(
                CreatePartitionsTopic(
                    name=name,
                    count=ask.partitions,
                    assignments=ask.replica_assignment[counts[name] :] if ask.replica_assignment else None,
                )
                for name in chosen
            )
        )
    _finish(ask, dict(zip(chosen, results, strict=True)))


def _require(result: Result) -> None:
    if result.error is not ErrorCode.NONE:
        raise AdminError(result.error, result.message)


def _finish(ask: Ask, results: Mapping[str, Result]) -> None:
    """Says which topics could not be done; exit code 1 if there are any."""
    failed = {name: result for name, result in results.items() if result.error is not ErrorCode.NONE}
    for name, result in failed.items():
        typer.echo(f"{FAILING}: {name}: {AdminError(result.error, result.message)}", err=True)
    if ask.as_json:
        print_json({"topics": [document(result) for result in results.values()]})
    if failed:
        raise typer.Exit(1)


# -- describe ----------------------------------------------------------------------------------------------------------


def _describe(admin: AdminClient, ask: Ask) -> None:
    chosen = _chosen(admin, ask)
    described = sorted(admin.describe_topics(chosen), key=lambda topic: topic.name) if chosen else []
    for topic in described:
        _require(topic)
    configs = _overrides(admin, chosen)
    moves = _moves(admin)
    live = {broker.broker_id for broker in admin.describe_cluster().brokers if not broker.is_fenced}
    shown = [
        (topic, [item for item in topic.partitions if _is_shown(ask, topic, item, moves, live)]) for topic in described
    ]
    if ask.as_json:
        print_json([_topic_document(topic, items, configs[topic.name]) for topic, items in shown])
        return
    for topic, items in shown:
        if not ask.reports:
            typer.echo(_topic_line(topic, configs[topic.name], moves))
        for item in items:
            typer.echo(_partition_line(topic.name, item, moves.get(TopicPartition(topic.name, item.partition_index))))


def _overrides(admin: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The configs of each topic that are not the defaults."""
    configs = {}
    for result in admin.describe_configs([(ConfigResourceType.TOPIC, name) for name in names]) if names else ():
        _require(result)
        changed = (config for config in result.configs if config.source is not ConfigSource.DEFAULT_CONFIG)
        configs[result.resource_name] = {config.name: config.value for config in changed}
    return configs


def _moves(admin: AdminClient) -> Mapping[TopicPartition, OngoingPartitionReassignment]:
    """Moves under way; none where the principal may not see them, as in Kafka's tool."""
    try:
        return admin.list_reassignments()
    except AdminError as error:
        if error.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return {}
        raise


def _replication_factor(item: DescribedPartition, move: OngoingPartitionReassignment | None) -> int:
    return len(item.replica_nodes) - (0 if move is None else len(move.adding_replicas))


def _is_shown(
    ask: Ask,
    topic: DescribedTopic,
    item: DescribedPartition,
    moves: Mapping[TopicPartition, OngoingPartitionReassignment],
    live: set[int],
) -> bool:
    move = moves.get(TopicPartition(topic.name, item.partition_index))
    is_led, in_sync = item.leader_id != NO_LEADER, len(item.isr_nodes)
    holds = {
        "--under-replicated-partitions": in_sync < _replication_factor(item, move),
        "--unavailable-partitions": not is_led or item.leader_id not in live,
        "--under-min-isr-partitions": not is_led or in_sync < topic.min_insync_replicas,
        "--at-min-isr-partitions": in_sync == topic.min_insync_replicas,
    }
    return not ask.reports or any(holds[report] for report in ask.reports)


def _topic_line(
    topic: DescribedTopic,
    configs: Mapping[str, str],
    moves: Mapping[TopicPartition, OngoingPartitionReassignment],
) -> str:
    first = topic.partitions[0]
    factor = _replication_factor(first, moves.get(TopicPartition(topic.name, first.partition_index)))
    fields = {
        "Topic": topic.name,
        "TopicId": topic.topic_id,
        "PartitionCount": len(topic.partitions),
        "ReplicationFactor": factor,
        "Configs": ",".join(f"{key}={value}" for key, value in configs.items()),
    }
    return "\t".join(f"{key}: {value}" for key, value in fields.items())


def _partition_line(topic: str, item: DescribedPartition, move: OngoingPartitionReassignment | None) -> str:
    fields: dict[str, object] = {
        "Topic": topic,
        "Partition": item.partition_index,
        "Leader": _leader(item.leader_id),
        "Replicas": numbers(item.replica_nodes),
        "Isr": numbers(item.isr_nodes),
    }
    if move is not None:
        fields |= {
            "Adding Replicas": numbers(move.adding_replicas),
            "Removing Replicas": numbers(move.removing_replicas),
        }
    fields |= {
        "Elr": _if_known(item.eligible_leader_replicas),
        "LastKnownElr": _if_known(item.last_known_elr),
        "LastKnownLeader": "N/A" if item.last_known_leader is None else _leader(item.last_known_leader),
    }
    return "".join(f"\t{key}: {value}" for key, value in fields.items())


def _leader(broker: int) -> str:
    return "none" if broker == NO_LEADER else str(broker)


def _if_known(brokers: Sequence[int] | None) -> str:
    return "N/A" if brokers is None else numbers(brokers)


def _topic_document(
    topic: DescribedTopic, items: Sequence[DescribedPartition], configs: Mapping[str, str]
) -> dict[str, object]:
    return document(topic) | {"configs": dict(configs), "partitions": [document(item) for item in items]}


_ACTIONS: Mapping[str, Callable[[AdminClient, Ask], None]] = {
    "--create": _create,
    "--list": _list,
    "--describe": _describe,
    "--delete": _delete,
    "--alter": _alter,
}
