"""Wrong options, command by command: one line on standard error, exit code 2, and no connection to a cluster."""

from __future__ import annotations

import shlex

import pytest

from tests.unit.experiments.cli.cli_helpers import Commands

WRONG = {
    "topics": (
        "",
        "--list --describe",
        "--create",
        "--delete",
        "--alter --partitions 2",
        "--alter --topic t",
        "--alter --topic t --partitions 2 --remove-partitions 1",
        "--create --topic t --partitions 1 --replica-assignment 0",
        "--alter --topic t --partitions 2 --config a=b",
        "--list --under-replicated-partitions",
        "--describe --under-replicated-partitions --at-min-isr-partitions",
        "--create --topic t --if-exists",
        "--delete --topic t --if-not-exists",
        "--alter --topic t --partitions 2 --replication-factor 2",
        "--create --topic t --replica-assignment 0:x",
        "--create --topic t --replica-assignment 0:0",
        "--create --topic t --replica-assignment 0:1,0",
        "--create --topic t --replica-assignment -1",
        "--create --topic t --config a",
        "--describe --topic '('",
        "--list --name x --bootstrap-server h:1",
        "--list --principal alice",
        "--create --topic t --partitions 0 => --partitions",
        "--create --topic t --partitions -1 => --partitions",
        "--create --topic t --partitions x => --partitions",
        "--create --topic t --partitions 3000000000 => --partitions",
        "--create --topic t --replication-factor 0 => --replication-factor",
        "--create --topic t --replication-factor -1 => --replication-factor",
        "--create --topic t --replication-factor x => --replication-factor",
        "--create --topic t --replication-factor 3000000000 => --replication-factor",
    ),
    "configs": (
        "--topic t",
        "--describe",
        "--describe --entity-type users",
        "--describe --entity-type brokers",
        "--describe --entity-type topics --entity-default",
        "--describe --entity-type brokers --entity-default --entity-name 0",
        "--describe --topic t --entity-type topics",
        "--describe --topic t --entity-name t",
        "--alter --topic t",
        "--alter --entity-type topics --add-config a=b",
        "--alter --topic t --add-config a",
        "--alter --topic t --add-config =a",
        "--describe --topic t --add-config a=b",
        "--alter --topic t --add-config a=b --all",
        "--alter --topic t --add-config-file /nonexistent",
    ),
    "features": (
        "upgrade => --feature",
        "upgrade --feature metadata.version => --feature",
        "upgrade --feature =1 => --feature",
        "upgrade --feature metadata.version=x => --feature",
        "upgrade --feature metadata.version=-1 => --feature",
        "upgrade --feature metadata.version=40000 => --feature",
        "downgrade --feature a=1 --feature a=2 => --feature",
        "disable => --feature",
    ),
    "acls": (
        "--topic t",
        "--add --allow-principal User:a",
        "--add --topic t",
        "--add --topic t --allow-principal a",
        "--add --topic t --allow-principal User:a --operation none",
        "--add --topic t --allow-principal User:a --operation ClusterAction",
        "--add --cluster --allow-principal User:a --operation Read",
        "--list --resource-pattern-type x",
        "--add --topic t --allow-principal User:a --resource-pattern-type match",
        "--list --cluster --resource-pattern-type prefixed",
        "--list --operation read",
        "--add --topic t --allow-principal User:a --principal User:a",
        "--list --topic ''",
    ),
    "leader-election": (
        "--election-type best --all-topic-partitions",
        "--election-type preferred",
        "--election-type preferred --topic t",
        "--election-type preferred --all-topic-partitions --partition 0",
        "--election-type preferred --topic t --partition 0 --all-topic-partitions",
        "--election-type preferred --path-to-json-file f --all-topic-partitions",
        "--election-type preferred --path-to-json-file f --topic t --partition 0",
        "--election-type designation --all-topic-partitions",
        "--election-type designation --topic t --partition 0",
        "--election-type preferred --path-to-json-file /nonexistent",
        "--all-topic-partitions => --election-type",
    ),
    "reassign-partitions": (
        "--reassignment-json-file f",
        "--list --verify --reassignment-json-file f",
        "--execute",
        "--generate --broker-list 0",
        "--list --reassignment-json-file f",
        "--verify --reassignment-json-file f --additional",
        "--execute --reassignment-json-file f --broker-list 0",
        "--execute --reassignment-json-file /nonexistent",
    ),
    "metadata-quorum": (
        "describe",
        "describe --status --replication",
        "describe --status --human-readable",
        "add-controller",
        "add-controller --controller-id x",
        "add-controller --controller-id 1001 --controller-directory-id notauuid",
        "add-controller --controller-id -1",
        "add-controller --controller-id 1001 --endpoint localhost:9093",
        "add-controller --controller-id 1001 --endpoint C://localhost:70000",
        "remove-controller",
        "remove-controller --controller-id 1001 --endpoint C://h:1",
    ),
    "up": (
        "--brokers 0",
        "--controllers 0",
        "--controllers 10",
        "--controllers 2 --config controller.quorum.voters=1000,1002",
        "--controllers 2 --config controller.quorum.voters=1000,1000",
        "--generation v9",
        "--generation v3 --controllers 1",
        "--generation v3 --brokers 2 --racks a,b",
        "--generation v3 --config controller.quorum.voters=1000",
        "--generation v3 --config unclean.recovery.strategy=balanced",
        "--brokers 3 --racks a,b",
        "--brokers 2 --racks a,",
        "--config no.such=1",
        "--config min.insync.replicas=0",
        "--config min.insync.replicas",
        "--name a/b --detach",
    ),
    "console-producer": ("--topic t --acks 2 => acks: found '2'",),
    "console-consumer": (
        "--topic t --offset 3 => --offset: found 3 without --partition",
        "--topic t --from-beginning --partition 0 --offset 3 => --offset: found 3 with --from-beginning",
        "--topic t --partition 0 --offset x => --offset: found x",
        "--topic t --from-beginning --property print.key=true"
        " => --property: found print.key=true; allowed: print.partition=true",
        "--topic t --from-beginning --json"
        " => --max-messages is missing; allowed: --max-messages or --timeout-ms with --json",
        "--topic t --from-beginning --max-messages 0 => --max-messages: found '0'",
    ),
    "produce": (
        "--topic t --num-records 0 => --num-records",
        "--topic t --acks 2 => --acks",
        "--topic t --record-size 1 => --record-size",
        "--topic t --partition -1 => --partition",
    ),
    "explore": (
        "--mutant no-such => no-such",
        "--generation kip-1 => kip-497",
        "--bounds lossy=-1 => lossy=-1",
        "--bounds 'lossy=\u0661' => lossy=\u0661",
        "--bounds lucky=1 => records",
        "--bounds lossy=all => lossy=all",
        "--brokers 2 --min-isr 3 => --min-isr",
    ),
    "study numbers": (
        "--write-latency 0ms => 1ms to 1m",
        "--write-latency 4 => a number and a unit",
        "--network-latency 21ms => 0ms to 20ms",
        "--session-timeout 1ms => 100ms to 1h",
        "--sessions 101 => whole numbers from 1 to 100",
        "--sessions 0 => whole numbers from 1 to 100",
        "--multi x => whole numbers from 1 to 100000",
        "--only L22 => one of L1, L2",
        "--write /no/such/folder/numbers.md => a directory that exists",
    ),
}
"""The arguments of each command; behind `=>`, what the line names."""
COVERS = {"leader-election": ("J1", "J5", "J6", "J7", "J9")}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(name, line, marks=pytest.mark.covers(*COVERS[name]) if name in COVERS else ())
        for name, lines in WRONG.items()
        for line in lines
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(command: Commands, name: str, line: str) -> None:
    arguments, _, named = line.partition("=> ")
    refused = command.refused(*name.split(), *shlex.split(arguments))
    assert refused.startswith("isray: ")
    assert "; allowed: " in refused
    assert named in refused
