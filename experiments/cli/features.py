"""`isray features`: kafka-features.sh. Describe, upgrade, downgrade and disable feature levels (K2-K11).

Options of the connection may stand before the subcommand or behind it (`target.keep_options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from experiments.cli.target import (
    Bootstrap,
    CommandConfig,
    Json,
    Name,
    Principal,
    Target,
    administering,
    document,
    keep_options,
    print_json,
    target_within,
)
from experiments.support.errors import InputError
from protocol.config import SHORT_MAX
from protocol.errors import ErrorCode
from protocol.messages.admin import Result
from protocol.messages.cluster import FeatureUpdate, UpgradeType

FAILING = "Error while executing feature command"
PAST = {"upgrade": "upgraded", "downgrade": "downgraded", "disable": "disabled"}
Levels = Annotated[
    list[str] | None, typer.Option("--feature", metavar="NAME=LEVEL", help="A feature and its level; several times.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Even if metadata is lost by it.")]

app = typer.Typer(help="Feature levels of a running cluster.", callback=keep_options, no_args_is_help=True)


@app.command()
def describe(
    context: typer.Context,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """The levels that are in force, and those that the cluster can run."""
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    with administering(wanted, FAILING) as admin:
        found = sorted(admin.describe_features(), key=lambda feature: feature.name)
    if as_json:
        print_json([document(feature) for feature in found])
        return
    for feature in found:
        fields = {
            "Feature": feature.name,
            "SupportedMinVersion": feature.min_version_level,
            "SupportedMaxVersion": feature.max_version_level,
            "FinalizedVersionLevel": feature.finalized_version_level,
        }
        typer.echo("\t".join(f"{key}: {value}" for key, value in fields.items()))


@app.command()
def upgrade(
    context: typer.Context,
    feature: Levels = None,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Raise feature levels."""
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    _update("upgrade", wanted, _levels(feature), UpgradeType.UPGRADE, dry_run)


@app.command()
def downgrade(
    context: typer.Context,
    feature: Levels = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Lower feature levels."""
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    _update("downgrade", wanted, _levels(feature), _lowering(unsafe), dry_run)


@app.command()
def disable(
    context: typer.Context,
    feature: Annotated[list[str] | None, typer.Option("--feature", metavar="NAME", help="Several times.")] = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Lower features to level 0."""
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    _update("disable", wanted, [(item, 0) for item in feature or ()], _lowering(unsafe), dry_run)


def _lowering(unsafe: bool) -> UpgradeType:
    return UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE


def _levels(options: Sequence[str] | None) -> list[tuple[str, int]]:
    levels = []
    for option in options or ():
        feature, _, level = option.partition("=")
        if not feature.strip() or not level.strip().isdecimal() or int(level) > SHORT_MAX:
            raise InputError("--feature", "", option, f"NAME=LEVEL, a level from 0 to {SHORT_MAX}")
        levels.append((feature.strip(), int(level)))
    return levels


def _update(verb: str, wanted: Target, levels: Sequence[tuple[str, int]], kind: UpgradeType, dry_run: bool) -> None:
    names = [feature for feature, _ in levels]
    if not levels or len(set(names)) != len(names):
        raise InputError("--feature", "", ", ".join(names) or "none", f"at least one feature to {verb}, each once")
    updates = [FeatureUpdate(feature=feature, max_version_level=level, upgrade_type=kind) for feature, level in levels]
    with administering(wanted, FAILING) as admin:
        results = admin.update_features(updates, dry_run)
    failed = 0
    for feature, level in sorted(levels):
        result = results[feature]
        failed += result.error is not ErrorCode.NONE
        _tell(verb, feature, level, result, dry_run, wanted.as_json)
    if wanted.as_json:
        print_json({"dry_run": dry_run, "features": [document(result) for result in results.values()]})
    if failed:
        typer.echo(f"{failed} out of {len(levels)} operation(s) failed.", err=True)
        raise typer.Exit(1)


def _tell(verb: str, feature: str, level: int, result: Result, dry_run: bool, as_json: bool) -> None:
    to_level = "" if verb == "disable" else f" to {level}"
    if result.error is not ErrorCode.NONE:
        could = "Can not" if dry_run else "Could not"
        typer.echo(f"{could} {verb} {feature}{to_level}. {result.error.name}: {result.message}", err=True)
    elif not as_json:
        modal = "can be" if dry_run else "was"
        typer.echo(f"{feature} {modal} {PAST[verb]}{to_level}.")
