"""`isray storage` on directories of the machine, and a node that starts on a formatted one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from actors.storage import DiskStorage, Owner
from protocol.contract import Outbox
from protocol.errors import ForeignDirectoryError
from protocol.ids import uuid_text
from protocol.quorum import state_file
from protocol.quorum.context import QuorumConfig
from protocol.quorum.log import SNAPSHOT_FILE, Snapshot
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey, VoterSet
from tests.unit.actors.disk_helpers import content
from tests.unit.experiments.cli.cli_helpers import Commands
from tests.yaml_rows import rows


def formatting(directory: Path, *more: str, node: int = 1000, cluster: str = "c1") -> tuple[str, ...]:
    place = ("--cluster-id", cluster, "--node-id", str(node), "--directory", str(directory))
    return ("storage", "format", *place, *more)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "node"


def started(directory: Path, node: int, cluster: str = "c1") -> tuple[DiskStorage, QuorumReplica]:
    """A replica of the metadata log that starts on a directory."""
    storage = DiskStorage(directory, Owner(cluster, node))
    replica = QuorumReplica(node, QuorumConfig(cluster, bootstrap=(1000,)), storage, Random(1), Outbox())
    replica.start(0)
    replica.settle(0)
    return storage, replica


@pytest.mark.covers("D31", "J15", "M77")
def test_a_standalone_controller_leads_at_once(command: Commands, directory: Path) -> None:
    said = command.ok(*formatting(directory, "--standalone"))
    uuid = json.loads((directory / state_file.FILE).read_bytes())["voterUuid"]
    assert said == f"Formatting {directory} for controller-1000 of cluster c1, directory id {uuid}.\n"
    storage, replica = started(directory, 1000)
    assert replica.is_leader
    assert replica.voters.keys == (replica.key,) == (ReplicaKey(1000, uuid),)
    storage.close()


def test_the_initial_controllers_are_the_voters(command: Commands, tmp_path: Path) -> None:
    keys = [ReplicaKey(1000 + number, uuid_text(number + 1)) for number in range(3)]
    listed = ",".join(f"{key.id}@{key.uuid}" for key in keys)
    for key in keys:
        directory = tmp_path / str(key.id)
        command.ok(*formatting(directory, "--initial-controllers", listed, node=key.id))
        storage, replica = started(directory, key.id)
        assert (replica.key, replica.voters.keys) == (key, tuple(keys))
        storage.close()


@pytest.mark.parametrize(("properties", "more", "said"), rows(__file__, "server-properties.yaml"))
def test_the_properties_of_a_server_say_what_to_format(
    command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: str, more: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.properties").write_text(properties)
    code, out, err = command.run("storage", "format", "-t", "c1", "-c", "server.properties", *more)
    assert said in (err if code else out), (out, err)
    assert (code, len(err.splitlines()), Path("data").exists()) in [(0, 0, True), (2, 1, False)]
    if code == 0:
        assert command.json("storage", "info", "-c", "server.properties")["cluster_id"] == "c1"


def test_the_voters_have_the_endpoints_that_are_given(command: Commands, directory: Path) -> None:
    listed = "1001@c-1:9094:AAAAAAAAAAAAAAAAAAAAAg,1000@c-0:9093:AAAAAAAAAAAAAAAAAAAAAQ"
    command.ok(*formatting(directory, "--initial-controllers", listed))
    storage, replica = started(directory, 1000)
    voters = replica.voters.endpoints.items()
    found = {key.id: [(place.name, place.host, place.port) for place in places] for key, places in voters}
    assert found == {1000: [("CONTROLLER", "c-0", 9093)], 1001: [("CONTROLLER", "c-1", 9094)]}
    storage.close()


def test_a_controller_that_joins_has_a_uuid_and_no_log(command: Commands, tmp_path: Path) -> None:
    first, second = (
        command.json(*formatting(tmp_path / name, "--no-initial-controllers", node=1001)) for name in ("a", "b")
    )
    assert (first["formatted"], first["voters"], first["logs"]) == (True, [], [])
    assert len(first["directory_id"]) == 22
    assert first["directory_id"] != second["directory_id"]
    storage, replica = started(tmp_path / "a", 1001)
    assert replica.key == ReplicaKey(1001, first["directory_id"])
    assert not replica.is_voter
    storage.close()


def test_a_brokers_directory_is_just_its_own(command: Commands, directory: Path) -> None:
    assert command.ok(*formatting(directory, node=3)) == f"Formatting {directory} for broker-3 of cluster c1.\n"
    DiskStorage(directory, Owner("c1", 3)).close()
    with pytest.raises(ForeignDirectoryError, match="found cluster 'c1', node 3"):
        DiskStorage(directory, Owner("c1", 4))
    assert "which is formatted already" in command.refused(*formatting(directory, node=3))


@pytest.mark.parametrize("node", [1000, 3])
def test_a_formatted_directory_is_not_changed(command: Commands, directory: Path, node: int) -> None:
    how = ("--standalone",) if node >= 1000 else ()
    first = command.json(*formatting(directory, *how, node=node))
    before = content(directory, with_lock=False)
    refused = command.refused(*formatting(directory, *how, node=node))
    assert refused == f"isray: --directory: found {directory}, which is formatted already; allowed: one that is not\n"
    again = command.ok(*formatting(directory, *how, "--ignore-formatted", node=node))
    assert again == f"{directory} is formatted already.\n"
    assert command.json(*formatting(directory, *how, "--ignore-formatted", node=node)) == first | {"formatted": False}
    for other in (("c2", node), ("c1", node + 1)):
        how_other = formatting(directory, *how, "--ignore-formatted", cluster=other[0], node=other[1])
        refused = command.refused(*how_other)
        name = "controller" if node >= 1000 else "broker"
        found, allowed = f"{name}-{node} of cluster c1", f"{name}-{other[1]} of cluster {other[0]}"
        assert refused == f"isray: {directory}: owner: found {found}; allowed: {allowed}\n"
    assert content(directory, with_lock=False) == before


def test_a_directory_with_other_things_or_in_use_is_refused(command: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "other.txt").write_text("x")
    (tmp_path / "file").write_text("")
    for name, why in (("mine", "holds other.txt and no meta.json"), ("file", "is no directory")):
        assert why in command.refused(*formatting(tmp_path / name, "--standalone"))
    assert content(tmp_path, with_lock=False) == {"mine/other.txt": b"x", "file": b""}
    storage = DiskStorage(tmp_path / "used", Owner("c1", 1000))
    before = content(tmp_path / "used", with_lock=False)
    assert "in use by process" in command.refused(*formatting(tmp_path / "used", "--standalone"))
    assert content(tmp_path / "used", with_lock=False) == before
    storage.close()
    command.ok(*formatting(tmp_path / "used", "--standalone"))


FORM = (
    "allowed: ID@UUID or ID@HOST:PORT:UUID, by commas: a controller's id from 1000, and a directory id of 22 letters, "
)


@pytest.mark.parametrize(("node", "cluster", "how"), rows(__file__, "wrong-formats.yaml"))
def test_wrong_options_are_exit_code_2_and_nothing_is_made(
    command: Commands, directory: Path, node: int, cluster: str, how: list[str]
) -> None:
    assert "; allowed: " in command.refused(*formatting(directory, *how, node=node, cluster=cluster))
    assert not directory.exists()


@pytest.mark.parametrize(("listed", "found"), rows(__file__, "wrong-voters.yaml"))
def test_a_wrong_first_voter_is_answered_with_the_form(
    command: Commands, tmp_path: Path, listed: str, found: str
) -> None:
    refused = command.refused(*formatting(tmp_path / "node", "--initial-controllers", listed))
    assert f"--initial-controllers: found {found}; {FORM}" in refused


def test_info_prints_the_owner_and_content_of_a_directory(command: Commands, directory: Path) -> None:
    command.ok(*formatting(directory, "--standalone"))
    storage, replica = started(directory, 1000)
    uuid, size = replica.key.uuid, (directory / "logs/__cluster_metadata/0/00000000000000000000.log").stat().st_size
    assert command.ok("storage", "info", "--directory", str(directory)).splitlines() == [
        f"{directory}: controller-1000 of cluster c1",
        "format version: 1",
        f"directory id: {uuid}",
        f"quorum: epoch 1, leader 1000, voted for 1000:{uuid}",
        f"voters: 1000:{uuid}",
        f"log __cluster_metadata/0: from 0, flushed to 2, {size} bytes",
    ]
    replica.take_snapshot(2, b"")
    before = content(directory, with_lock=False)
    found = command.json("storage", "info", "--directory", str(directory))
    assert found["voters"] == [{"voter_id": 1000, "voter_uuid": uuid}]
    assert (found["faults"], found["logs"][0]["start_offset"]) == ([], 2)
    assert content(directory, with_lock=False) == before
    storage.close()


def test_the_voters_are_those_of_the_snapshot_where_it_reaches_behind_the_log(
    command: Commands, directory: Path
) -> None:
    command.ok(*formatting(directory, "--standalone"))
    found = Snapshot(5, 20, VoterSet.of([ReplicaKey(1002, "u")]), b"")
    (directory / SNAPSHOT_FILE).write_bytes(found.encode())
    voters = command.json("storage", "info", "--directory", str(directory))["voters"]
    assert voters == [{"voter_id": 1002, "voter_uuid": "u"}]


def test_a_directory_that_is_not_formatted_or_damaged_is_exit_code_1(command: Commands, tmp_path: Path) -> None:
    info = ("storage", "info", "--directory")
    assert command.fails(*info, str(tmp_path / "no")) == f"isray: {tmp_path / 'no'} is not formatted.\n"
    assert command.json(*info, str(tmp_path / "no"), code=1)["faults"] == [f"{tmp_path / 'no'} is not formatted."]
    assert not (tmp_path / "no").exists()
    command.ok(*formatting(tmp_path / "node", "--standalone"))
    (tmp_path / "node" / state_file.FILE).write_bytes(b"{")
    assert "quorum-state: found b'{'; allowed: a JSON object" in command.fails(*info, str(tmp_path / "node"))
    assert command.json(*info, str(tmp_path / "node"), code=1)["cluster_id"] == "c1"
    (tmp_path / "node" / "meta.json").write_bytes(b"{}")
    assert "does not name the directory's owner" in command.refused(*info, str(tmp_path / "node"))


def test_uuids_are_fresh(command: Commands) -> None:
    first, second = command.ok("storage", "random-uuid"), command.json("storage", "random-uuid")["uuid"]
    assert len(first.strip()) == len(second) == 22
    assert first.strip() != second
