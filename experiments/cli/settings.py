"""`isray configs` and `isray features`: kafka-configs.sh for topics and for the cluster-wide defaults of brokers, and
kafka-features.sh (K2-K11).

Single brokers have no configs of their own (H15), so `--entity-type brokers` goes with `--entity-default`; the cluster
refuses the name of a broker. `--describe` shows the values that were set, and the source of the value in force.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.cluster_access import Target, administering, keep_options, on_cluster, require
from experiments.cli.feature_levels import levels_of_release, named_levels
from experiments.cli.help import App
from experiments.cli.kafka_tools import kafka_tools
from experiments.cli.output import Json, fail, flag, option, print_json, print_result
from experiments.cli.parse import one_of, only_with
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.explorer.values import message_fields
from experiments.support.errors import InputError, MissingInput
from experiments.support.properties import read_properties
from protocol.errors import ErrorCode
from protocol.features import METADATA_VERSION
from protocol.kafka_release import NEWEST
from protocol.messages.admin import Result
from protocol.messages.cluster import FeatureUpdate, UpgradeType
from protocol.messages.configs import (
    AlterableConfig,
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsResult,
    DescribedConfig,
)

CONFIGS_FAILING = "Error while executing config command"
TYPES = {"topics": ConfigResourceType.TOPIC, "brokers": ConfigResourceType.BROKER}
DYNAMIC = {
    ConfigResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigResourceType.BROKER: ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
}
_KEY = re.compile(r"[a-zA-Z0-9._-]+")
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
Entity = tuple[ConfigResourceType, str | None]
"""A topic or the default of all brokers (the name is empty); the name None stands for all topics."""


@on_cluster()
def configs(
    target: Target,
    describe: Annotated[bool, flag("--describe", "Show the configs of entities.")] = False,
    alter: Annotated[bool, flag("--alter", "Set and delete configs of an entity.")] = False,
    all_: Annotated[bool, flag("--all", "With --describe: defaults, too.")] = False,
    entity_type: Annotated[str | None, option("|".join(TYPES), "The type of entity.")] = None,
    entity_name: Annotated[str | None, option("NAME", "A topic.")] = None,
    entity_default: Annotated[bool, flag("--entity-default", "The default of all brokers.")] = False,
    topic: Annotated[str | None, option("TOPIC", "Short for --entity-type topics --entity-name TOPIC.")] = None,
    broker_defaults: Annotated[
        bool, flag("--broker-defaults", "Short for --entity-type brokers --entity-default.")
    ] = False,
    add_config: Annotated[str | None, option("k=v,k2=v2", "Configs to set; 'k=[a,b]' for a value with commas.")] = None,
    add_config_file: Annotated[Path | None, option("FILE", "Properties to set.")] = None,
    delete_config: Annotated[str | None, option("k,k2", "Configs to delete.")] = None,
) -> None:
    """Describe and alter configs of topics, and the cluster-wide ones."""
    action = one_of({"--describe": describe, "--alter": alter})
    only_with("--describe", action, {"--all": all_})
    changing = {"--add-config": add_config, "--add-config-file": add_config_file, "--delete-config": delete_config}
    only_with("--alter", action, changing)
    kind, entity = _entity(entity_type, entity_name, entity_default, topic, broker_defaults)
    if describe:
        with administering(target, CONFIGS_FAILING) as admin:
            _describe(admin, kind, entity, all_, target.as_json)
        return
    added = _added(add_config, add_config_file)
    deleted = [] if delete_config is None else [_key("--delete-config", key) for key in delete_config.split(",")]
    if not added and not deleted:
        raise MissingInput("what to alter", " | ".join(changing))
    if entity is None:
        raise MissingInput("--entity-name", "a topic, or --entity-default, with --alter")
    with administering(target, CONFIGS_FAILING) as admin:
        _alter(admin, kind, entity, added, deleted, target.as_json)


def _entity(
    entity_type: str | None, entity_name: str | None, entity_default: bool, topic: str | None, broker_defaults: bool
) -> Entity:
    source = one_of(
        {"--entity-type": entity_type is not None, "--topic": topic is not None, "--broker-defaults": broker_defaults}
    )
    if source != "--entity-type":
        if entity_name is not None or entity_default:
            found = f"{source} with --entity-name or --entity-default"
            raise InputError(source, "", found, f"{source} alone, or --entity-type with one of the two")
        return (ConfigResourceType.BROKER, "") if broker_defaults else (ConfigResourceType.TOPIC, topic)
    kind = TYPES.get(entity_type or "")
    if kind is None:
        refused = kafka_tools()["configs"].refused
        why = refused.get(f"--{entity_type}") or refused.get(f"--{(entity_type or '').removesuffix('s')}") or ""
        named = f"{entity_type}, {why.partition('; ')[0]}" if why else entity_type
        raise InputError("--entity-type", "", named, " | ".join(TYPES))
    if entity_default and entity_name is not None:
        raise InputError("--entity-default", "", "--entity-default with --entity-name", "one of the two")
    if entity_default and kind is ConfigResourceType.TOPIC:
        found, allowed = "--entity-default with --entity-type topics", "--entity-type brokers: defaults of all topics"
        raise InputError("--entity-default", "", found, allowed)
    if kind is ConfigResourceType.BROKER and not entity_default and entity_name is None:
        found, allowed = "brokers without --entity-default", "--entity-type brokers --entity-default"
        raise InputError("--entity-type", "", found, allowed)
    return kind, "" if entity_default else entity_name


def _added(option: str | None, path: Path | None) -> dict[str, str]:
    added = {_key(str(path), key): value for key, value in read_properties(path).items()} if path is not None else {}
    for item in _OUTSIDE_BRACKETS.split(option) if option is not None else ():
        key, found, value = item.partition("=")
        if not found:
            raise InputError("--add-config", "", item, "name=value, several separated by commas")
        added[_key("--add-config", key)] = value.strip().removeprefix("[").removesuffix("]")
    return added


def _key(source: str, text: str) -> str:
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise InputError(source, "", key or "an empty name", "letters, digits, '.', '_' and '-'")
    return key


def _describe(
    admin: AdminClient, kind: ConfigResourceType, entity: str | None, everything: bool, as_json: bool
) -> None:
    names = [entity] if entity is not None else admin.list_config_resources(kind)
    results = admin.describe_configs([(kind, name) for name in names], synonyms=True) if names else ()
    for result in results:
        require(result)
    shown = {result.resource_name: _shown(result, everything) for result in results}
    documents = [
        {"entity_type": kind.name.lower(), "entity_name": name or None, "configs": [*map(message_fields, items)]}
        for name, items in shown.items()
    ]
    print_result(as_json, documents, _print, shown, "All" if everything else "Dynamic")


def _shown(result: DescribeConfigsResult, everything: bool) -> list[DescribedConfig]:
    items = [item for item in result.configs if everything or item.source is DYNAMIC[result.resource_type]]
    return sorted(items, key=lambda item: item.name)


def _print(shown: Mapping[str, Sequence[DescribedConfig]], which: str) -> None:
    for name, items in shown.items():
        of_topic = f"{which} configs for topic {name} are:"
        typer.echo(of_topic if name else "Default configs for brokers in the cluster are:")
        for item in items:
            synonyms = ", ".join(f"{found.source.name}:{found.name}={found.value}" for found in item.synonyms)
            typer.echo(f"  {item.name}={item.value} sensitive=false synonyms={{{synonyms}}}")


def _alter(
    admin: AdminClient, kind: ConfigResourceType, entity: str, added: dict[str, str], deleted: list[str], as_json: bool
) -> None:
    if deleted:
        [present] = admin.describe_configs([(kind, entity)])
        require(present)
        known = {item.name for item in _shown(present, everything=False)}
        unknown = [key for key in deleted if key not in known]
        if unknown:
            raise AdminError(ErrorCode.INVALID_CONFIG, f"Invalid config(s): {','.join(unknown)}")
    changes = [AlterableConfig(name=key, value=value) for key, value in added.items()]
    changes += [AlterableConfig(name=key, operation=ConfigOperation.DELETE) for key in deleted]
    result = admin.alter_configs(kind, entity, changes)
    require(result)
    what = f"config for {kind.name.lower()} {entity}" if entity else "default config for brokers in the cluster"
    print_result(as_json, message_fields(result), typer.echo, f"Completed updating {what}.")


FEATURES_FAILING = "Error while executing feature command"
Levels = Annotated[list[str] | None, option("NAME=LEVEL", "A feature and its level; may be repeated.")]
KafkaVersion = Annotated[str | None, option("VERSION", "Levels that a release of Kafka has, such as 4.1 or 4.1-IV1.")]
DryRun = Annotated[bool, flag("--dry-run", "Print what would happen, and change nothing.")]
Unsafe = Annotated[bool, flag("--unsafe", "Even if metadata is lost.")]
LOWERING = {False: UpgradeType.SAFE_DOWNGRADE, True: UpgradeType.UNSAFE_DOWNGRADE}
"""By whether `--unsafe` is given."""

app = App("Feature levels of a running cluster.", callback=keep_options)


@app.register("describe", "isray features describe")
@on_cluster()
def describe(target: Target) -> None:
    """The finalized levels, and those that the cluster supports."""
    with administering(target, FEATURES_FAILING) as admin:
        found = sorted(admin.describe_features(), key=lambda feature: feature.name)
    lines = [
        f"Feature: {it.name}\tSupportedMinVersion: {it.min_version_level}\t"
        f"SupportedMaxVersion: {it.max_version_level}\tFinalizedVersionLevel: {it.finalized_version_level}"
        for it in found
    ]
    print_result(target.as_json, [*map(message_fields, found)], typer.echo, "\n".join(lines))


@app.register("upgrade", "isray features upgrade --feature unclean.recovery.enabled=1")
@on_cluster()
def upgrade(
    target: Target,
    feature: Levels = None,
    release_version: KafkaVersion = None,
    dry_run: DryRun = False,
) -> None:
    """Raise feature levels."""
    _update("upgrade", target, _levels(feature, release_version, 1), UpgradeType.UPGRADE, dry_run)


@app.register("downgrade", "isray features downgrade --feature metadata.version=1 --dry-run")
@on_cluster()
def downgrade(
    target: Target,
    feature: Levels = None,
    release_version: KafkaVersion = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
) -> None:
    """Lower feature levels."""
    _update("downgrade", target, _levels(feature, release_version, 0), LOWERING[unsafe], dry_run)


@app.register("disable", "isray features disable --feature unclean.recovery.enabled")
@on_cluster()
def disable(
    target: Target,
    feature: Annotated[list[str] | None, option("NAME", "A feature; may be repeated.")] = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
) -> None:
    """Lower features to level 0."""
    _update("disable", target, named_levels(f"{item}=0" for item in feature or ()), LOWERING[unsafe], dry_run)


@app.register("version-mapping", "isray features version-mapping --release-version 4.1")
def version_mapping(release_version: KafkaVersion = None, as_json: Json = False) -> None:
    """The levels here of a release of Kafka's, of the newest without one."""
    release = release_version or NEWEST.value
    levels = levels_of_release(release)
    lines = (f"{name}={level}" + f" ({release})" * (name == METADATA_VERSION) for name, level in levels.items())
    print_result(as_json, levels, typer.echo, "\n".join(lines))


def _levels(features: Sequence[str] | None, release: str | None, least: int) -> list[tuple[str, int]]:
    """The levels to set: those given, or those of a release from `least` on (Kafka's upgrade sends no level 0)."""
    if release is None:
        return named_levels(features or ())
    if features:
        raise InputError("--release-version", "", "--release-version with --feature", "one of the two")
    return [(feature, level) for feature, level in levels_of_release(release).items() if level >= least]


def _update(verb: str, target: Target, levels: Sequence[tuple[str, int]], kind: UpgradeType, dry_run: bool) -> None:
    names = [feature for feature, _ in levels]
    allowed = f"at least one feature to {verb}, each once"
    if not levels:
        raise MissingInput("--feature", allowed)
    if len(set(names)) != len(names):
        raise InputError("--feature", "", ", ".join(names), allowed)
    updates = [FeatureUpdate(feature=feature, max_version_level=level, upgrade_type=kind) for feature, level in levels]
    with administering(target, FEATURES_FAILING) as admin:
        results = admin.update_features(updates, dry_run)
    for feature, level in sorted(levels):
        to_level = f" to {level}" if level or verb != "disable" else ""
        _report(verb, feature, to_level, results[feature], dry_run, target.as_json)
    failed = sum(results[feature].error is not ErrorCode.NONE for feature in names)
    if target.as_json:
        print_json({"dry_run": dry_run, "features": [message_fields(result) for result in results.values()]})
    if failed:
        fail(f"{failed} out of {len(levels)} operation(s) failed.")


def _report(verb: str, feature: str, to_level: str, result: Result, dry_run: bool, as_json: bool) -> None:
    if result.error is not ErrorCode.NONE:
        could = "Can not" if dry_run else "Could not"
        typer.echo(f"{could} {verb} {feature}{to_level}. {result.error.name}: {result.message}", err=True)
    elif not as_json:
        modal = "can be" if dry_run else "was"
        typer.echo(f"{feature} {modal} {verb.removesuffix('e')}ed{to_level}.")
