"""`isray configs`: kafka-configs.sh for topics and for the cluster-wide defaults of brokers.

Single brokers have no configs of their own (H15), so `--entity-type brokers` goes with `--entity-default`; another name
is the server's to refuse. `--describe` shows what was set and where the value in force comes from, `--all` everything.
"""

from __future__ import annotations

import re
from pathlib import Path
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
    one_of,
    only_with,
    print_json,
    read_properties,
    target,
)
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.errors import ErrorCode
from protocol.messages.admin import Result
from protocol.messages.configs import (
    AlterableConfig,
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsResult,
    DescribedConfig,
)

FAILING = "Error while executing config command"
TYPES = {"topics": ConfigResourceType.TOPIC, "brokers": ConfigResourceType.BROKER}
DYNAMIC = {
    ConfigResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigResourceType.BROKER: ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
}
_KEY = re.compile(r"[a-zA-Z0-9._-]+")
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
Flag = Annotated[bool, typer.Option()]


def configs(
    describe: Flag = False,
    alter: Flag = False,
    all_: Annotated[bool, typer.Option("--all", help="With --describe: defaults too.")] = False,
    entity_type: Annotated[str | None, typer.Option(metavar="|".join(TYPES))] = None,
    entity_name: Annotated[str | None, typer.Option(metavar="NAME", help="A topic.")] = None,
    entity_default: Annotated[bool, typer.Option(help="The default of all brokers.")] = False,
    topic: Annotated[str | None, typer.Option(help="Short for --entity-type topics --entity-name.")] = None,
    broker_defaults: Annotated[bool, typer.Option(help="Short for --entity-type brokers --entity-default.")] = False,
    add_config: Annotated[str | None, typer.Option(metavar="k=v,k2=v2", help="'k=[a,b]' where commas belong.")] = None,
    add_config_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Properties to set.")] = None,
    delete_config: Annotated[str | None, typer.Option(metavar="k,k2")] = None,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Describe and alter configs of topics, and the cluster-wide ones."""
    wanted = target(bootstrap_server, name, command_config, principal, as_json)
    action = one_of({"--describe": describe, "--alter": alter})
    only_with("--describe", action, {"--all": all_})
    changing = {"--add-config": add_config, "--add-config-file": add_config_file, "--delete-config": delete_config}
    only_with("--alter", action, changing)
    kind, entity = _entity(entity_type, entity_name, entity_default, topic, broker_defaults)
    if action == "--describe":
        with administering(wanted, FAILING) as admin:
            _describe(admin, kind, entity, all_, as_json)
        return
    added = _added(add_config, add_config_file)
    deleted = [] if delete_config is None else [_key("--delete-config", key) for key in delete_config.split(",")]
    if not added and not deleted:
        raise InputError("--alter", "", "nothing to alter", " | ".join(changing))
    if entity is None:
        raise InputError("--entity-name", "", "none", "a topic, or --entity-default, with --alter")
    with administering(wanted, FAILING) as admin:
        _alter(admin, kind, entity, added, deleted, as_json)


def _entity(
    entity_type: str | None, entity_name: str | None, entity_default: bool, topic: str | None, broker_defaults: bool
) -> tuple[ConfigResourceType, str | None]:
    """The resource that is meant; no name means all topics."""
    source = one_of(
        {"--entity-type": entity_type is not None, "--topic": topic is not None, "--broker-defaults": broker_defaults}
    )
    if source != "--entity-type":
        if entity_name is not None or entity_default:
            raise InputError(source, "", "it with --entity-name or --entity-default", "one way to name the entity")
        return (ConfigResourceType.BROKER, "") if broker_defaults else (ConfigResourceType.TOPIC, topic)
    kind = TYPES.get(entity_type or "")
    if kind is None:
        raise InputError("--entity-type", "", entity_type, " | ".join(TYPES))
    if entity_default and entity_name is not None:
        raise InputError("--entity-default", "", "it with --entity-name", "one of the two")
    if entity_default and kind is ConfigResourceType.TOPIC:
        raise InputError("--entity-default", "", "it with topics", "--entity-type brokers: defaults of all topics")
    if kind is ConfigResourceType.BROKER and not entity_default and entity_name is None:
        raise InputError("--entity-type", "", "brokers without a name", "--entity-default with it")
    return kind, "" if entity_default else entity_name


def _added(option: str | None, path: Path | None) -> dict[str, str]:
    added = {_key(str(path), key): value for key, value in read_properties(path).items()} if path is not None else {}
    for item in _OUTSIDE_BRACKETS.split(option) if option is not None else ():
        key, found, value = item.partition("=")
        if not found:
            raise InputError("--add-config", "", item, "name=value, several by commas")
        added[_key("--add-config", key)] = value.strip().removeprefix("[").removesuffix("]")
    return added


def _key(source: str, text: str) -> str:
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise InputError(source, "", key or "an empty name", "letters, digits, '.', '_' and '-'")
    return key


def _require(result: Result) -> None:
    if result.error is not ErrorCode.NONE:
        raise AdminError(result.error, result.message)


def _describe(
    admin: AdminClient, kind: ConfigResourceType, entity: str | None, everything: bool, as_json: bool
) -> None:
    names = [entity] if entity is not None else admin.list_config_resources(kind)
    results = admin.describe_configs([(kind, name) for name in names], synonyms=True) if names else ()
    for result in results:
        _require(result)
    shown = [(result, _shown(result, everything)) for result in results]
    if as_json:
        documents = [
            {
                "entity_type": kind.name.lower(),
                "entity_name": result.resource_name or None,
                "configs": [document(item) for item in items],
            }
            for result, items in shown
        ]
        print_json(documents)
        return
    for result, items in shown:
        which = "All" if everything else "Dynamic"
        of_one = f"{which} configs for topic {result.resource_name} are:"
        typer.echo(of_one if result.resource_name else "Default configs for brokers in the cluster are:")
        for item in items:
            typer.echo(_line(item))


def _shown(result: DescribeConfigsResult, everything: bool) -> list[DescribedConfig]:
    dynamic = DYNAMIC[result.resource_type]
    items = [item for item in result.configs if everything or item.source is dynamic]
    return sorted(items, key=lambda item: item.name)


def _line(item: DescribedConfig) -> str:
    synonyms = ", ".join(f"{found.source.name}:{found.name}={found.value}" for found in item.synonyms)
    return f"  {item.name}={item.value} sensitive=false synonyms={{{synonyms}}}"


def _alter(
    admin: AdminClient, kind: ConfigResourceType, entity: str, added: dict[str, str], deleted: list[str], as_json: bool
) -> None:
    if deleted:
        [present] = admin.describe_configs([(kind, entity)])
        _require(present)
        known = {item.name for item in _shown(present, everything=False)}
        unknown = [key for key in deleted if key not in known]
        if unknown:
            raise AdminError(ErrorCode.INVALID_CONFIG, f"Invalid config(s): {','.join(unknown)}")
    changes = [AlterableConfig(name=key, value=value) for key, value in added.items()]
    changes += [AlterableConfig(name=key, operation=ConfigOperation.DELETE) for key in deleted]
    result = admin.alter_configs(kind, entity, changes)
    _require(result)
    if as_json:
        print_json(document(result))
    elif entity:
        typer.echo(f"Completed updating config for {kind.name.lower()} {entity}.")
    else:
        typer.echo("Completed updating default config for brokers in the cluster.")
