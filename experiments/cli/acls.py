"""`isray acls`: kafka-acls.sh for the resources that there are here, topics and the cluster (G32).

`--principal` filters the list, as in Kafka's tool; who asks is said by `--command-config` alone. `--remove` asks before
it removes, unless `--force`. The filter `match` finds the entries that concern a resource, whatever their pattern;
`any` those of that name, whatever their pattern type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from experiments.cli.target import (
    Bootstrap,
    CommandConfig,
    Json,
    Name,
    administering,
    document,
    one_of,
    only_with,
    print_json,
    target,
)
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.errors import ErrorCode
from protocol.messages.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    WILDCARD,
    AclEntry,
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from protocol.messages.admin import Result

FAILING = "Error while executing ACL command"
CURRENT = "Current ACLs for resource"
PATTERNS = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED, "any": None, "match": None}
SPECIFIC = ("literal", "prefixed")
TOPIC_OPERATIONS = frozenset(AclOperation) - {AclOperation.CLUSTER_ACTION}
CLUSTER_OPERATIONS = frozenset(AclOperation) - {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE}
OPERATIONS = {operation.name.replace("_", "").lower(): operation for operation in AclOperation}
Several = Annotated[list[str] | None, typer.Option(metavar="User:NAME", help="Several times; User:* is everyone.")]
Flag = Annotated[bool, typer.Option()]
Resource = tuple[AclResourceType, str]


def acls(
    add: Flag = False,
    remove: Flag = False,
    list_: Annotated[bool, typer.Option("--list")] = False,
    topic: Annotated[list[str] | None, typer.Option(help="A topic, '*' for all; several times.")] = None,
    cluster: Annotated[bool, typer.Option(help="The cluster.")] = False,
    resource_pattern_type: Annotated[str, typer.Option(metavar="|".join(PATTERNS))] = "literal",
    operation: Annotated[
        list[str] | None, typer.Option(metavar="OPERATION", help="All (the default), Read, Write, ...; several times.")
    ] = None,
    allow_principal: Several = None,
    deny_principal: Several = None,
    principal: Annotated[list[str] | None, typer.Option(metavar="User:NAME", help="With --list: only theirs.")] = None,
    force: Annotated[bool, typer.Option(help="Do not ask before removing.")] = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> None:
    """Add, remove and list access control entries."""
    wanted = target(bootstrap_server, name, command_config, None, as_json)
    action = one_of({"--add": add, "--remove": remove, "--list": list_})
    pattern = resource_pattern_type.lower()
    if pattern not in PATTERNS or (add and pattern not in SPECIFIC):
        raise InputError("--resource-pattern-type", "", pattern, " | ".join(SPECIFIC if add else PATTERNS))
    changing = {"--operation": operation, "--allow-principal": allow_principal, "--deny-principal": deny_principal}
    only_with("--add|--remove", action, changing)
    only_with("--list", action, {"--principal": principal})
    only_with("--remove", action, {"--force": force})
    resources = _resources(topic or [], cluster, pattern)
    if action != "--list" and not resources:
        raise InputError(action, "", "no resource", "--topic or --cluster with it")
    if action == "--list":
        with administering(wanted, FAILING) as admin:
            _tell_list(_found(admin, resources, pattern), principal or [], as_json)
        return
    entries = _entries(resources, pattern, operation or ["all"], allow_principal or [], deny_principal or [])
    if add and not entries:
        raise InputError("--add", "", "no principal", "--allow-principal or --deny-principal with it")
    with administering(wanted, FAILING) as admin:
        if add:
            _add(admin, entries, as_json)
        else:
            found = _found(admin, resources, pattern)
            _remove(admin, [entry for entry in found if _is_meant(entry, entries)], force, as_json)


def _resources(topics: Sequence[str], cluster: bool, pattern: str) -> list[Resource]:
    if cluster and pattern == "prefixed":
        raise InputError("--resource-pattern-type", "", "prefixed with --cluster", "literal")
    if not all(topic.strip() for topic in topics):
        raise InputError("--topic", "", "an empty name", "the name of a topic, or '*'")
    resources = [(AclResourceType.TOPIC, topic.strip()) for topic in topics]
    return [*resources, *([(AclResourceType.CLUSTER, CLUSTER_NAME)] if cluster else [])]


def _operation(text: str, kind: AclResourceType) -> AclOperation:
    allowed = TOPIC_OPERATIONS if kind is AclResourceType.TOPIC else CLUSTER_OPERATIONS
    found = OPERATIONS.get(text.replace("_", "").lower())
    if found is None or found not in allowed:
        names = ", ".join(sorted(operation.name.lower() for operation in allowed))
        raise InputError("--operation", "", f"{text} for a {kind.name.lower()}", names)
    return found


def _entries(
    resources: Sequence[Resource],
    pattern: str,
    operations: Sequence[str],
    allowed: Sequence[str],
    denied: Sequence[str],
) -> list[AclEntry]:
    """One entry per resource, operation and principal."""
    permissions = [(who, AclPermissionType.ALLOW) for who in allowed] + [
        (who, AclPermissionType.DENY) for who in denied
    ]
    for who, _ in permissions:
        if not who.startswith("User:") or who == "User:":
            raise InputError("--allow-principal, --deny-principal", "", who, "User:NAME, or User:* for everyone")
    return [
        AclEntry(
            resource_type=kind,
            resource_name=resource,
            pattern_type=PATTERNS[pattern] or PatternType.LITERAL,
            principal=who,
            operation=_operation(text, kind),
            permission_type=permission,
        )
        for kind, resource in resources
        for text in operations
        for who, permission in permissions
    ]


def _found(admin: AdminClient, resources: Sequence[Resource], pattern: str) -> list[AclEntry]:
    """The entries of these resources, or of all, under the pattern type or filter."""
    if not resources:
        return list(admin.describe_acls(AclFilter()))
    found: dict[AclEntry, None] = {}
    for kind, resource in resources:
        if pattern == "match":
            all_of_kind = admin.describe_acls(AclFilter(resource_type=kind))
            found.update(dict.fromkeys(entry for entry in all_of_kind if _concerns(entry, resource)))
        else:
            wanted = AclFilter(resource_type=kind, resource_name=resource, pattern_type=PATTERNS[pattern])
            found.update(dict.fromkeys(admin.describe_acls(wanted)))
    return list(found)


def _concerns(entry: AclEntry, resource: str) -> bool:
    if entry.pattern_type is PatternType.PREFIXED:
        return resource.startswith(entry.resource_name)
    return entry.resource_name in (resource, WILDCARD)


def _is_meant(entry: AclEntry, wanted: Sequence[AclEntry]) -> bool:
    """Whether `--remove` means the entry: all of the resource where nobody is named, else those named."""
    same = ("resource_type", "principal", "operation", "permission_type")
    return not wanted or any(all(getattr(entry, key) == getattr(item, key) for key in same) for item in wanted)


def _add(admin: AdminClient, entries: Sequence[AclEntry], as_json: bool) -> None:
    results = admin.create_acls(entries)
    added = [entry for entry, result in zip(entries, results, strict=True) if result.error is ErrorCode.NONE]
    if as_json:
        print_json({"added": [document(entry) for entry in added], "results": [document(item) for item in results]})
    else:
        _print(added, "Adding ACLs for resource")
    _fail_if_any(results)


def _remove(admin: AdminClient, entries: Sequence[AclEntry], force: bool, as_json: bool) -> None:
    if not force and entries:
        for entry in entries:
            typer.echo(f"\t{_resource_text(entry)} {_entry_text(entry)}", err=True)
        typer.confirm("Are you sure you want to remove these ACLs?", abort=True, err=True)
    results = admin.delete_acls([_exactly(entry) for entry in entries]) if entries else ()
    removed = [entry for result in results for entry in result.matching_acls]
    if as_json:
        print_json({"removed": [document(entry) for entry in removed]})
    else:
        _print(removed, "Removed ACLs for resource")
    _fail_if_any(results)


def _exactly(entry: AclEntry) -> AclFilter:
    return AclFilter(**{name: getattr(entry, name) for name in type(entry).model_fields})


def _fail_if_any(results: Sequence[Result]) -> None:
    failed = [AdminError(result.error, result.message) for result in results if result.error is not ErrorCode.NONE]
    for error in failed:
        typer.echo(f"{FAILING}: {error}", err=True)
    if failed:
        raise typer.Exit(1)


def _tell_list(entries: Sequence[AclEntry], principals: Sequence[str], as_json: bool) -> None:
    shown = [entry for entry in entries if not principals or entry.principal in principals]
    if as_json:
        print_json([document(entry) for entry in shown])
        return
    if not principals:
        _print(shown, CURRENT)
    for who in principals:
        typer.echo(f"ACLs for principal `{who}`")
        _print([entry for entry in shown if entry.principal == who], CURRENT)


def _print(entries: Sequence[AclEntry], title: str) -> None:
    by_resource: dict[str, list[AclEntry]] = {}
    for entry in entries:
        by_resource.setdefault(_resource_text(entry), []).append(entry)
    for resource, some in _sorted(by_resource).items():
        typer.echo(f"{title} `{resource}`:")
        for entry in some:
            typer.echo(f"\t{_entry_text(entry)}")


def _sorted(by_resource: Mapping[str, list[AclEntry]]) -> dict[str, list[AclEntry]]:
    return {resource: sorted(by_resource[resource], key=_entry_text) for resource in sorted(by_resource)}


def _resource_text(entry: AclEntry) -> str:
    kind, pattern = entry.resource_type.name, entry.pattern_type.name
    return f"ResourcePattern(resourceType={kind}, name={entry.resource_name}, patternType={pattern})"


def _entry_text(entry: AclEntry) -> str:
    who = f"principal={entry.principal}, host={entry.host or ANY_HOST}"
    return f"({who}, operation={entry.operation.name}, permissionType={entry.permission_type.name})"
