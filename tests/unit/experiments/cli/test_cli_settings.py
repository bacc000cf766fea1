"""`isray configs`, `isray features` and `isray acls` against a simulated cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from protocol.features import Generation
from tests.unit.experiments.cli.cli_helpers import CliBench, Commands, MakeBench


@pytest.fixture
def guarded(make_bench: MakeBench, root: list[str]) -> CliBench:
    """A cluster with an authorizer; User:root is its super user."""
    bench = make_bench(authorizer_class_name="standard", super_users="User:root")
    bench.ok("topics", "--create", "--topic", "t", "--replica-assignment", "0:1:2", *root)
    return bench


@pytest.fixture
def root(tmp_path: Path) -> list[str]:
    return as_user("root", tmp_path)


def as_user(name: str, folder: Path) -> list[str]:
    path = folder / f"{name}.properties"
    path.write_text(f"# who asks\n\nprincipal = User:{name}\n")
    return ["--command-config", str(path)]


def test_configs_of_a_topic_are_set_shown_and_removed(bench: CliBench) -> None:
    bench.create()
    topic = ("--entity-type", "topics", "--entity-name", "t")
    changed = bench.ok("configs", "--alter", *topic, "--add-config", "min.insync.replicas=2,flush.messages=[5]")
    assert changed == "Completed updating config for topic t.\n"
    title, first, second = bench.ok("configs", "--describe", *topic).splitlines()
    assert title == "Dynamic configs for topic t are:"
    assert first.startswith("  flush.messages=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:flush.messages=5")
    synonyms = "DYNAMIC_TOPIC_CONFIG:min.insync.replicas=2, DEFAULT_CONFIG:min.insync.replicas=1"
    assert second == f"  min.insync.replicas=2 sensitive=false synonyms={{{synonyms}}}"
    bench.ok("configs", "--alter", "--topic", "t", "--delete-config", "flush.messages")
    [shown] = bench.json("configs", "--describe", "--topic", "t")
    assert [(item["name"], item["value"]) for item in shown["configs"]] == [("min.insync.replicas", "2")]
    everything = bench.ok("configs", "--describe", "--topic", "t", "--all").splitlines()
    assert everything[0] == "All configs for topic t are:"
    assert len(everything) > 3


def test_the_defaults_of_all_brokers_are_set_and_shown(bench: CliBench, tmp_path: Path) -> None:
    file = tmp_path / "add.properties"
    file.write_text("min.insync.replicas=2\n")
    default = ("--entity-type", "brokers", "--entity-default")
    out = bench.ok("configs", "--alter", *default, "--add-config-file", str(file))
    assert out == "Completed updating default config for brokers in the cluster.\n"
    title, shown = bench.ok("configs", "--describe", "--broker-defaults").splitlines()
    assert title == "Default configs for brokers in the cluster are:"
    assert shown.startswith("  min.insync.replicas=2 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:")


def test_configs_that_the_server_refuses_are_exit_code_1(bench: CliBench) -> None:
    bench.create()
    alter = ("configs", "--alter", "--topic", "t")
    assert "INVALID_CONFIG" in bench.fails(*alter, "--add-config", "min.insync.replicas=0")
    assert "INVALID_CONFIG" in bench.fails(*alter, "--add-config", "no.such.config=1")
    refused = bench.fails(*alter, "--add-config", "min.insync.replica=1")
    assert "found 'min.insync.replica'. Did you mean 'min.insync.replicas'?; allowed: " in refused
    assert "Invalid config(s): flush.ms" in bench.fails(*alter, "--delete-config", "flush.ms")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in bench.fails("configs", "--describe", "--topic", "no")
    one_broker = ("--entity-type", "brokers", "--entity-name", "0")
    assert "INVALID_REQUEST" in bench.fails("configs", "--describe", *one_broker)
    [shown] = bench.json("configs", "--describe", "--entity-type", "topics")
    assert shown == {"entity_type": "topic", "entity_name": "t", "configs": []}


def test_features_are_described_upgraded_and_downgraded(make_bench: MakeBench) -> None:
    bench = make_bench(Generation.KIP_966_ELR)
    shown = bench.ok("features", "describe").splitlines()
    assert shown[1] == (
        "Feature: unclean.recovery.enabled\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 0"
    )
    upgrade = ("features", "upgrade", "--feature", "unclean.recovery.enabled=1")
    assert bench.ok(*upgrade, "--dry-run") == "unclean.recovery.enabled can be upgraded to 1.\n"
    assert levels(bench)["unclean.recovery.enabled"] == 0
    assert bench.ok(*upgrade) == "unclean.recovery.enabled was upgraded to 1.\n"
    assert levels(bench)["unclean.recovery.enabled"] == 1
    disable = ("features", "disable", "--feature", "unclean.recovery.enabled")
    assert bench.ok(*disable, "--unsafe") == "unclean.recovery.enabled was disabled.\n"
    failed = bench.fails("features", "upgrade", "--feature", "metadata.version=9")
    assert "Could not upgrade metadata.version to 9." in failed
    assert "1 out of 1 operation(s) failed." in failed
    document = bench.json("features", "downgrade", "--feature", "no.such=1", code=1)
    assert document["features"][0]["error"] != "NONE"


def test_features_take_the_levels_of_a_release(make_bench: MakeBench) -> None:
    """Kafka's ELR is on by default since 4.1; no release has unclean recovery, and an upgrade turns nothing off."""
    bench = make_bench(Generation.KIP_497)
    assert bench.ok("features", "upgrade", "--release-version", "4.0") == "metadata.version was upgraded to 1.\n"
    assert bench.ok("features", "upgrade", "--release-version", "4.1-IV0") == "metadata.version was upgraded to 2.\n"
    bench.ok("features", "upgrade", "--feature", "unclean.recovery.enabled=1")
    bench.ok("features", "upgrade", "--release-version", "4.4-IV1")
    assert levels(bench) == {"metadata.version": 2, "unclean.recovery.enabled": 1}
    bench.ok("features", "upgrade", "--release-version", "4.4")
    assert levels(bench) == {"metadata.version": 3, "unclean.recovery.enabled": 1}
    bench.ok("features", "downgrade", "--release-version", "4.4-IV2")
    assert levels(bench) == {"metadata.version": 3, "unclean.recovery.enabled": 0}
    lost = "metadata.version 2 would lose the registrations of 1 controllers"
    assert lost in bench.fails("features", "downgrade", "--release-version", "4.3")
    bench.ok("features", "downgrade", "--release-version", "4.3", "--unsafe")
    assert "an upgrade lowers nothing" in bench.fails("features", "upgrade", "--release-version", "3.9")
    disabled = bench.ok("features", "disable", "--feature", "eligible.leader.replicas.version")
    assert disabled == "metadata.version was disabled to 1.\n"
    bench.ok("features", "upgrade", "--feature", "eligible.leader.replicas.version=1")
    assert levels(bench) == {"metadata.version": 2, "unclean.recovery.enabled": 0}


def test_the_levels_of_a_release_are_printed(command: Commands) -> None:
    assert command.ok("features", "version-mapping") == "metadata.version=3 (4.4)\nunclean.recovery.enabled=0\n"
    assert command.json("features", "version-mapping", "--release-version", "4.0-IV3")["metadata.version"] == 1


def levels(bench: CliBench) -> dict[str, int]:
    return {item["name"]: item["finalized_version_level"] for item in bench.json("features", "describe")}


def test_options_of_the_connection_may_stand_before_the_subcommand(bench: CliBench) -> None:
    bench.ok("features", "--bootstrap-server", "h:1", "--principal", "User:a", "describe")
    assert (bench.targets[-1].bootstrap, bench.targets[-1].principal) == ("h:1", "User:a")
    bench.ok("features", "describe", "--bootstrap-server", "h:2")
    assert bench.targets[-1].bootstrap == "h:2"


@pytest.mark.covers("G32")
def test_entries_are_added_listed_and_removed(guarded: CliBench, root: list[str], tmp_path: Path) -> None:
    alice = as_user("alice", tmp_path)
    create = ("topics", "--create", "--topic", "a", "--partitions", "1")
    assert "TOPIC_AUTHORIZATION_FAILED" in guarded.fails(*create, *alice)
    one = ("--topic", "a", "--operation", "Create", "--allow-principal", "User:alice")
    added = guarded.ok("acls", "--add", *one, "--operation", "Describe", *root)
    pattern = "ResourcePattern(resourceType=TOPIC, name=a, patternType=LITERAL)"
    assert added.splitlines()[0] == f"Adding ACLs for resource `{pattern}`:"
    assert guarded.ok(*create, *alice) == "Created topic a.\n"
    listed = guarded.ok("acls", "--list", "--topic", "a", *root).splitlines()
    assert listed[0] == f"Current ACLs for resource `{pattern}`:"
    assert "\t(principal=User:alice, host=*, operation=CREATE, permissionType=ALLOW)" in listed
    removed = guarded.json("acls", "--remove", *one, "--force", *root)
    assert [entry["operation"] for entry in removed["removed"]] == ["CREATE"]
    assert [entry["operation"] for entry in guarded.json("acls", "--list", *root)] == ["DESCRIBE"]
    guarded.ok("acls", "--remove", "--topic", "a", "--force", *root)
    assert guarded.json("acls", "--list", *root) == []


@pytest.mark.covers("G32")
def test_a_producer_and_a_consumer_have_the_operations_of_their_roles(guarded: CliBench, root: list[str]) -> None:
    guarded.ok("acls", "--add", "--allow-principal", "User:p", "--producer", "--topic", "t", *root)
    consumer = ("--allow-principal", "User:c", "--consumer", "--topic", "t", "--group", "g", *root)
    code, out, err = guarded.run("acls", "--add", *consumer)
    assert (code, err) == (0, "")
    assert out.count("permissionType=ALLOW") == 3
    listed = guarded.json("acls", "--list", *root)
    assert sorted((entry["principal"], entry["operation"], entry["resource_name"]) for entry in listed) == [
        ("User:c", "DESCRIBE", "t"),
        ("User:c", "READ", "g"),
        ("User:c", "READ", "t"),
        ("User:p", "CREATE", "t"),
        ("User:p", "DESCRIBE", "t"),
        ("User:p", "WRITE", "t"),
    ]
    pattern = "ResourcePattern(resourceType=GROUP, name=g, patternType=LITERAL)"
    assert (
        guarded.ok("acls", "--list", "--group", "g", *root).splitlines()[0] == f"Current ACLs for resource `{pattern}`:"
    )
    guarded.ok("acls", "--remove", "--force", *consumer)
    assert {entry["principal"] for entry in guarded.json("acls", "--list", *root)} == {"User:p"}


@pytest.mark.covers("G32")
def test_records_are_written_and_read_as_the_principal(
    guarded: CliBench, root: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role, name in (("--producer", "p"), ("--consumer", "c")):
        group = ("--group", "g") if role == "--consumer" else ()
        guarded.run("acls", "--add", "--allow-principal", f"User:{name}", role, "--topic", "t", *group, *root)
    writing = ("produce", "--topic", "t", "--num-records", "3")
    reading = ("console-consumer", "--topic", "t", "--from-beginning", "--max-messages", "5", "--timeout-ms", "2000")
    assert guarded.ok(*writing, "--principal", "User:p") == "records: 3 acknowledged\n"
    for other, refusal in (("other", "TOPIC_AUTHORIZATION_FAILED"), ("c", "CLUSTER_AUTHORIZATION_FAILED")):
        code, out, _ = guarded.run(*writing, "--principal", f"User:{other}")
        assert (code, out) == (1, f"records: 0 acknowledged, 3 failed ({refusal})\n")
    (tmp_path / "lines").write_text("one\ntwo\n")
    for user, code in (("p", 0), ("c", 1)):
        with (tmp_path / "lines").open() as lines:
            monkeypatch.setattr(sys, "stdin", lines)
            assert guarded.run("console-producer", "--topic", "t", *as_user(user, tmp_path))[0] == code
    assert guarded.ok(*reading, "--principal", "User:c").splitlines()[-2:] == ["one", "two"]
    assert "TOPIC_AUTHORIZATION_FAILED" in guarded.fails(*reading, *as_user("p", tmp_path))


@pytest.mark.covers("G32")
def test_filters_of_the_list(guarded: CliBench, root: list[str]) -> None:
    for options in (
        ["--topic", "abc", "--allow-principal", "User:a"],
        ["--topic", "ab", "--allow-principal", "User:b", "--resource-pattern-type", "prefixed"],
        ["--topic", "*", "--deny-principal", "User:c", "--operation", "Write"],
        ["--cluster", "--allow-principal", "User:a", "--operation", "ClusterAction"],
    ):
        guarded.ok("acls", "--add", *options, *root)

    def found(*options: str) -> list[str]:
        return sorted(entry["principal"] for entry in guarded.json("acls", "--list", *options, *root))

    assert found() == ["User:a", "User:a", "User:b", "User:c"]
    assert found("--topic", "abc") == ["User:a"]
    assert found("--topic", "abc", "--resource-pattern-type", "match") == ["User:a", "User:b", "User:c"]
    assert found("--topic", "ab", "--resource-pattern-type", "any") == ["User:b"]
    assert found("--cluster") == ["User:a"]
    assert found("--principal", "User:b", "--principal", "User:c") == ["User:b", "User:c"]
    text = guarded.ok("acls", "--list", "--principal", "User:c", *root).splitlines()
    assert text[0] == "ACLs for principal `User:c`"
    assert text[2] == "\t(principal=User:c, host=*, operation=WRITE, permissionType=DENY)"


def test_without_an_authorizer_there_are_no_rights(bench: CliBench) -> None:
    assert "SECURITY_DISABLED" in bench.fails("acls", "--list")
    assert "SECURITY_DISABLED" in bench.fails("acls", "--add", "--topic", "t", "--allow-principal", "User:a")


@pytest.mark.covers("G32", "M86")
def test_an_election_without_the_right_changes_nothing(guarded: CliBench, tmp_path: Path) -> None:
    elect = ("leader-election", "--election-type", "preferred", "--topic", "t", "--partition", "0")
    before = guarded.state()
    assert "CLUSTER_AUTHORIZATION_FAILED" in guarded.fails(*elect, *as_user("alice", tmp_path))
    assert guarded.json(*elect, *as_user("alice", tmp_path), code=1)["error"] == "CLUSTER_AUTHORIZATION_FAILED"
    assert guarded.state() == before


@pytest.mark.parametrize("content", ["principal", "=x", "principal=alice"])
def test_a_wrong_properties_file_is_exit_code_2(command: Commands, tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.properties"
    path.write_text(content)
    line = command.refused("topics", "--list", "--command-config", str(path))
    assert str(path) in line
    assert "--principal" not in line
