"""`isray features`: kafka-features.sh. Describe, upgrade, downgrade and disable feature levels (K2-K11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from experiments.cli.cluster_access import (
    BootstrapServer,
    CommandConfig,
    OwnCluster,
    Principal,
    Target,
    administering,
    keep_options,
    target_of,
)
from experiments.cli.help import App
from experiments.cli.output import Json, fail, flag, option, print_json, print_result
from experiments.explorer.values import message_fields
from experiments.support.errors import InputError, MissingInput
from protocol.config import SHORT_MAX
from protocol.errors import ErrorCode
from protocol.messages.admin import Result
from protocol.messages.cluster import FeatureUpdate, UpgradeType

FAILING = "Error while executing feature command"
Levels = Annotated[list[str] | None, option("NAME=LEVEL", "A feature and its level; may be repeated.")]
DryRun = Annotated[bool, flag("--dry-run", "Print what would happen, and change nothing.")]
Unsafe = Annotated[bool, flag("--unsafe", "Even if metadata is lost.")]

app = App("Feature levels of a running cluster.", callback=keep_options)


@app.register("describe", "isray features describe")
def describe(
    context: typer.Context,
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """The finalized levels, and those that the cluster supports."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    with administering(target, FAILING) as admin:
        found = sorted(admin.describe_features(), key=lambda feature: feature.name)
    lines = [
        f"Feature: {it.name}\tSupportedMinVersion: {it.min_version_level}\t"
        f"SupportedMaxVersion: {it.max_version_level}\tFinalizedVersionLevel: {it.finalized_version_level}"
        for it in found
    ]
    print_result(target.as_json, [*map(message_fields, found)], typer.echo, "\n".join(lines))


@app.register("upgrade", "isray features upgrade --feature unclean.recovery.enabled=1")
def upgrade(
    context: typer.Context,
    feature: Levels = None,
    dry_run: DryRun = False,
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Raise feature levels."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    _update("upgrade", target, _levels(feature), UpgradeType.UPGRADE, dry_run)


@app.register("downgrade", "isray features downgrade --feature metadata.version=1 --dry-run")
def downgrade(
    context: typer.Context,
    feature: Levels = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Lower feature levels."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    _update("downgrade", target, _levels(feature), _lowering(unsafe), dry_run)


@app.register("disable", "isray features disable --feature unclean.recovery.enabled")
def disable(
    context: typer.Context,
    feature: Annotated[list[str] | None, option("NAME", "A feature; may be repeated.")] = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Lower features to level 0."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    _update("disable", target, [(item, 0) for item in feature or ()], _lowering(unsafe), dry_run)


def _lowering(unsafe: bool) -> UpgradeType:
    return UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE


def _levels(options: Sequence[str] | None) -> list[tuple[str, int]]:
    levels = []
    for text in options or ():
        feature, _, level = text.partition("=")
        if not feature.strip() or not level.strip().isdecimal() or int(level) > SHORT_MAX:
            raise InputError("--feature", "", text, f"NAME=LEVEL, a level from 0 to {SHORT_MAX}")
        levels.append((feature.strip(), int(level)))
    return levels


def _update(verb: str, target: Target, levels: Sequence[tuple[str, int]], kind: UpgradeType, dry_run: bool) -> None:
    names = [feature for feature, _ in levels]
    allowed = f"at least one feature to {verb}, each once"
    if not levels:
        raise MissingInput("--feature", allowed)
    if len(set(names)) != len(names):
        raise InputError("--feature", "", ", ".join(names), allowed)
    updates = [FeatureUpdate(feature=feature, max_version_level=level, upgrade_type=kind) for feature, level in levels]
    with administering(target, FAILING) as admin:
        results = admin.update_features(updates, dry_run)
    for feature, level in sorted(levels):
        to_level = "" if verb == "disable" else f" to {level}"
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
