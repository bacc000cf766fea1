"""`isray acls`: kafka-acls.sh for the resource types that exist here: topics, consumer groups, the cluster (G32).

`--principal` filters the list, as in Kafka's tool; only `--command-config` sets the principal of the requests.
`--producer` and `--consumer` stand for the operations of the role on topics, and of a consumer on its groups. Clients
have no addresses, so the only host is `*`. `--remove` asks for confirmation, unless `--force` is given. The pattern
type `match` finds the entries that apply to a resource, whatever their pattern; `any` those of exactly that name,
whatever their pattern type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated

import typer

from experiments.cli.cluster_access import (
    Bootstrap,
    CommandConfig,
    OwnCluster,
    administering,
    exit_if_failed,
    is_principal,
    target_of,
)
from experiments.cli.output import Json, flag, option, print_json, print_result
from experiments.cli.parse import one_of, only_with
from experiments.engines.admin_client import AdminClient
from experiments.explorer.values import message_fields
from experiments.support.errors import InputError, MissingInput
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

FAILING = "Error while executing ACL command"
CURRENT = "Current ACLs for resource"
PATTERNS = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED, "any": None, "match": None}
SPECIFIC = ("literal", "prefixed")
ALLOWED = {
    AclResourceType.TOPIC: frozenset(AclOperation) - {AclOperation.CLUSTER_ACTION},
    AclResourceType.GROUP: frozenset({AclOperation.ALL, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE}),
    AclResourceType.CLUSTER: frozenset(AclOperation) - {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE},
}
"""The operations that entries of a resource may have."""
OPERATIONS = {operation.name.replace("_", "").lower(): operation for operation in AclOperation}
ROLES: Mapping[str, Mapping[AclResourceType, Sequence[str]]] = {
    "--producer": {AclResourceType.TOPIC: ("write", "describe", "create")},
    "--consumer": {AclResourceType.TOPIC: ("read", "describe"), AclResourceType.GROUP: ("read",)},
}
"""The operations that the options stand for."""
Hosts = Annotated[list[str] | None, option("HOST", f"'{ANY_HOST}' alone: clients have no addresses.")]
Principals = Annotated[list[str] | None, option("User:NAME", "May be repeated; User:* is every principal.")]
Listed = Annotated[list[str] | None, option("User:NAME", "With --list: only entries of these principals.")]
Operations = Annotated[list[str] | None, option("OPERATION", "All (the default), Read, Write, ...; may be repeated.")]
Resource = tuple[AclResourceType, str]


def acls(
    add: Annotated[bool, flag("--add", "Add entries.")] = False,
    remove: Annotated[bool, flag("--remove", "Remove entries.")] = False,
    list_: Annotated[bool, flag("--list", "List entries.")] = False,
    topic: Annotated[list[str] | None, option("TOPIC", "A topic, '*' for all; may be repeated.")] = None,
    cluster: Annotated[bool, flag("--cluster", "The cluster.")] = False,
    resource_pattern_type: Annotated[str, option("|".join(PATTERNS), "How names of resources match.")] = "literal",
    operation: Operations = None,
    allow_principal: Principals = None,
    deny_principal: Principals = None,
    allow_host: Hosts = None,
    deny_host: Hosts = None,
    producer: Annotated[bool, flag("--producer", "Short for the operations Write, Describe and Create.")] = False,
    consumer: Annotated[bool, flag("--consumer", "Short for the operations Read and Describe; with --group.")] = False,
    group: Annotated[list[str] | None, option("GROUP", "A consumer group, '*' for all; may be repeated.")] = None,
    principal: Listed = None,
    force: Annotated[bool, flag("--force", "Remove without confirmation.")] = False,
    bootstrap_server: Bootstrap = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> None:
    """Add, remove and list access control entries."""
    target = target_of(bootstrap_server, name, as_json, command_config=command_config)
    action = one_of({"--add": add, "--remove": remove, "--list": list_})
    pattern = resource_pattern_type.lower()
    if pattern not in PATTERNS or (add and pattern not in SPECIFIC):
        raise InputError("--resource-pattern-type", "", pattern, " | ".join(SPECIFIC if add else PATTERNS))
    roles = {"--producer": producer, "--consumer": consumer}
    inferred = {"--operation": operation, "--deny-principal": deny_principal, "--deny-host": deny_host}
    only_with("--add|--remove", action, {"--allow-principal": allow_principal, "--allow-host": allow_host})
    only_with("--add|--remove", action, {**inferred, **roles})
    _check_roles(roles, inferred, topic, group, cluster)
    _check_hosts("--allow-host", allow_host or [])
    _check_hosts("--deny-host", deny_host or [])
    only_with("--list", action, {"--principal": principal})
    only_with("--remove", action, {"--force": force})
    resources = _resources(topic or [], group or [], cluster, pattern)
    if not list_ and not resources:
        raise MissingInput("a resource", f"--topic, --group or --cluster with {action}")
    if list_:
        with administering(target, FAILING) as admin:
            _print_list(_found(admin, resources, pattern), principal or [], target.as_json)
        return
    principals = {"ALLOW": allow_principal or [], "DENY": deny_principal or []}
    entries = _entries(resources, pattern, _operations(roles, operation or ["all"]), principals)
    if add and not entries:
        raise MissingInput("a principal", "--allow-principal or --deny-principal with --add")
    with administering(target, FAILING) as admin:
        if add:
            _add(admin, entries, target.as_json)
        else:
            found = _found(admin, resources, pattern)
            _remove(admin, [entry for entry in found if _is_selected(entry, entries)], force, target.as_json)


def _check_hosts(option: str, hosts: Sequence[str]) -> None:
    for host in hosts:
        if host != ANY_HOST:
            raise InputError(option, "", f"{host}, not modelled: addresses of clients", f"'{ANY_HOST}'")


def _check_roles(
    roles: Mapping[str, bool],
    inferred: Mapping[str, object],
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    cluster: bool,
) -> None:
    """InputError where `--producer` or `--consumer` lacks what it needs, or what it infers is given."""
    for role in (role for role, is_given in roles.items() if is_given):
        given = [name for name, value in inferred.items() if value]
        if given:
            raise InputError(given[0], "", f"{given[0]} with {role}", f"{role} alone, which says what is allowed")
        if cluster:
            raise InputError("--cluster", "", f"--cluster with {role}", f"--topic with {role}")
        for needed, found in (("--topic", topics), ("--group", groups)):
            if not found and (needed == "--topic" or role == "--consumer"):
                raise MissingInput(needed, f"{needed} with {role}")
    if groups and roles["--producer"] and not roles["--consumer"]:
        raise InputError("--group", "", "--group with --producer", "--topic with --producer")


def _operations(roles: Mapping[str, bool], given: Sequence[str]) -> Mapping[AclResourceType, Sequence[str]]:
    """The operations of the entries for each type of resource: those of the roles, or without a role the given ones."""
    chosen = [ROLES[role] for role, is_given in roles.items() if is_given]
    if not chosen:
        return dict.fromkeys(AclResourceType, given)
    return {kind: [*dict.fromkeys(name for role in chosen for name in role.get(kind, ()))] for kind in AclResourceType}


def _resources(topics: Sequence[str], groups: Sequence[str], cluster: bool, pattern: str) -> list[Resource]:
    if cluster and pattern == "prefixed":
        raise InputError("--resource-pattern-type", "", "prefixed with --cluster", "literal")
    named = ((AclResourceType.TOPIC, topics), (AclResourceType.GROUP, groups))
    for kind, names in named:
        if not all(name.strip() for name in names):
            what = kind.name.lower()
            raise InputError(f"--{what}", "", "an empty name", f"the name of a {what}, or '*'")
    of_cluster = [(AclResourceType.CLUSTER, CLUSTER_NAME)] if cluster else []
    return [*((kind, name.strip()) for kind, names in named for name in names), *of_cluster]


def _operation(text: str, kind: AclResourceType) -> AclOperation:
    found, allowed = OPERATIONS.get(text.replace("_", "").lower()), ALLOWED[kind]
    if found is None or found not in allowed:
        names = ", ".join(sorted(operation.name.lower() for operation in allowed))
        raise InputError("--operation", "", f"{text} for a {kind.name.lower()}", names)
    return found


def _entries(
    resources: Sequence[Resource],
    pattern: str,
    operations: Mapping[AclResourceType, Sequence[str]],
    principals: Mapping[str, Sequence[str]],
) -> list[AclEntry]:
    """One entry per resource, operation on it and principal; `principals` by type of permission."""
    permissions = [(principal, AclPermissionType[kind]) for kind, found in principals.items() for principal in found]
    for principal, _ in permissions:
        if not is_principal(principal):
            raise InputError("--allow-principal, --deny-principal", "", principal, "User:NAME, or User:* for all")
    return [
        AclEntry(
            resource_type=kind,
            resource_name=resource,
            pattern_type=PATTERNS[pattern] or PatternType.LITERAL,
            principal=principal,
            operation=_operation(text, kind),
            permission_type=permission,
        )
        for kind, resource in resources
        for text in operations[kind]
        for principal, permission in permissions
    ]


def _found(admin: AdminClient, resources: Sequence[Resource], pattern: str) -> list[AclEntry]:
    """The entries of these resources, or of all, under the pattern type or filter."""
    if not resources:
        return list(admin.describe_acls(AclFilter()))
    found: list[AclEntry] = []
    for kind, resource in resources:
        if pattern == "match":
            all_of_kind = admin.describe_acls(AclFilter(resource_type=kind))
            found += (entry for entry in all_of_kind if _applies(entry, resource))
        else:
            wanted = AclFilter(resource_type=kind, resource_name=resource, pattern_type=PATTERNS[pattern])
            found += admin.describe_acls(wanted)
    return list(dict.fromkeys(found))


def _applies(entry: AclEntry, resource: str) -> bool:
    if entry.pattern_type is PatternType.PREFIXED:
        return resource.startswith(entry.resource_name)
    return entry.resource_name in (resource, WILDCARD)


def _is_selected(entry: AclEntry, selected: Sequence[AclEntry]) -> bool:
    """Whether `--remove` selects the entry: any entry of the resource where no principal is given."""
    same = ("resource_type", "principal", "operation", "permission_type")
    return not selected or any(all(getattr(entry, key) == getattr(item, key) for key in same) for item in selected)


def _add(admin: AdminClient, entries: Sequence[AclEntry], as_json: bool) -> None:
    results = admin.create_acls(entries)
    added = [entry for entry, result in zip(entries, results, strict=True) if result.error is ErrorCode.NONE]
    found = {"added": [*map(message_fields, added)], "results": [*map(message_fields, results)]}
    print_result(as_json, found, _print, added, "Adding ACLs for resource")
    exit_if_failed((FAILING, result) for result in results)


def _remove(admin: AdminClient, entries: Sequence[AclEntry], force: bool, as_json: bool) -> None:
    if not force and entries:
        for entry in entries:
            typer.echo(f"\t{_resource_text(entry)} {_entry_text(entry)}", err=True)
        typer.confirm("Are you sure you want to remove these ACLs?", abort=True, err=True)
    results = admin.delete_acls([AclFilter.exactly(entry) for entry in entries]) if entries else ()
    removed = [entry for result in results for entry in result.matching_acls]
    print_result(as_json, {"removed": [*map(message_fields, removed)]}, _print, removed, "Removed ACLs for resource")
    exit_if_failed((FAILING, result) for result in results)


def _print_list(entries: Sequence[AclEntry], principals: Sequence[str], as_json: bool) -> None:
    shown = [entry for entry in entries if not principals or entry.principal in principals]
    if as_json:
        print_json([message_fields(entry) for entry in shown])
        return
    if not principals:
        _print(shown, CURRENT)
    for principal in principals:
        typer.echo(f"ACLs for principal `{principal}`")
        _print([entry for entry in shown if entry.principal == principal], CURRENT)


def _print(entries: Sequence[AclEntry], title: str) -> None:
    ordered = sorted(entries, key=lambda entry: (_resource_text(entry), _entry_text(entry)))
    for resource, group in groupby(ordered, _resource_text):
        typer.echo(f"{title} `{resource}`:")
        for entry in group:
            typer.echo(f"\t{_entry_text(entry)}")


def _resource_text(entry: AclEntry) -> str:
    kind, pattern = entry.resource_type.name, entry.pattern_type.name
    return f"ResourcePattern(resourceType={kind}, name={entry.resource_name}, patternType={pattern})"


def _entry_text(entry: AclEntry) -> str:
    subject = f"principal={entry.principal}, host={entry.host or ANY_HOST}"
    return f"({subject}, operation={entry.operation.name}, permissionType={entry.permission_type.name})"
