"""Controllers on damaged directories: refused in one line, without a change to any file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from actors.storage import DiskStorage, Owner
from protocol.config import ClusterConfig
from protocol.errors import CorruptLogError, ForeignDirectoryError, StorageError
from protocol.features import Generation
from protocol.ids import CLUSTER_ID
from protocol.messages.metadata_batch import pack_records
from protocol.nodes.controller import ControllerNode
from protocol.quorum.log import SNAPSHOT_FILE
from protocol.quorum.state_file import FILE as STATE_FILE
from protocol.quorum.state_file import format_voters
from protocol.quorum.voters import ReplicaKey, VoterSet
from tests.unit.actors.disk_helpers import content, flipped, refused

ME = ReplicaKey(1000, "disk-of-1000")
OWNER = Owner(CLUSTER_ID, ME.id)


def node_on(storage: DiskStorage) -> ControllerNode:
    return ControllerNode(ME.id, (ME.id,), ClusterConfig.of(Generation.KIP_966), storage, Random(1))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a cluster's only controller, with a log and a snapshot of its first part."""
    path = tmp_path / "controller-1000"
    storage = DiskStorage(path, OWNER)
    format_voters(storage, CLUSTER_ID, ME, VoterSet.of([ME]), now_ms=0)
    node = node_on(storage)
    node.start(0)
    image = node.state.image
    node.replica.take_snapshot(image.next_offset, pack_records(image.to_records()))
    storage.close()
    return path


def state_with(**fields: object) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps(json.loads(data) | fields).encode()


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], type[StorageError], str]] = {
    "a state of another cluster": (
        STATE_FILE,
        state_with(clusterId="some-other-cluster"),
        ForeignDirectoryError,
        f"quorum-state: clusterId: found 'some-other-cluster'; allowed: '{CLUSTER_ID}'",
    ),
    "a state of a later version": (STATE_FILE, state_with(data_version=2), CorruptLogError, "data_version: found 2"),
    "a state that is cut": (STATE_FILE, lambda data: data[:-3], CorruptLogError, "quorum-state: found"),
    "a state that is empty": (STATE_FILE, lambda data: b"", CorruptLogError, "quorum-state: found"),
    "a state of noise": (STATE_FILE, lambda data: b"\xff\x00\xfe", CorruptLogError, "quorum-state: found"),
    "a state whose epoch is a text": (STATE_FILE, state_with(leaderEpoch="1"), CorruptLogError, "whole numbers"),
    "a snapshot that is cut": (SNAPSHOT_FILE, lambda data: data[:-1], CorruptLogError, "fail their checksum"),
    "a snapshot that is empty": (SNAPSHOT_FILE, lambda data: b"", CorruptLogError, "found 0 bytes"),
    "a snapshot of noise": (SNAPSHOT_FILE, lambda data: b"\xc1" * 40, CorruptLogError, "fail their checksum"),
    "a snapshot with a damaged checksum": (SNAPSHOT_FILE, flipped(0), CorruptLogError, "fail their checksum"),
    "a snapshot with a damaged beginning": (SNAPSHOT_FILE, flipped(6), CorruptLogError, "fail their checksum"),
    "a snapshot with a damaged state": (SNAPSHOT_FILE, flipped(-1), CorruptLogError, "fail their checksum"),
}


@pytest.mark.parametrize(("name", "damage", "kind", "what"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_disk_is_refused_and_not_changed(
    directory: Path, name: str, damage: Callable[[bytes], bytes], kind: type[StorageError], what: str
) -> None:
    assert what in refused(directory, OWNER, name, damage, lambda storage: node_on(storage).start(0), kind)


def test_a_sound_disk_is_accepted(directory: Path) -> None:
    """The undamaged directory of the cases above."""
    storage = DiskStorage(directory, OWNER)
    node = node_on(storage)
    node.start(0)
    assert (node.is_active, node.replica.key) == (True, ME)
    assert node.first_record > 0, "it has begun with the snapshot"


def test_the_directory_of_another_cluster_or_node_is_refused(directory: Path) -> None:
    before = content(directory, with_lock=False)
    for owner in (Owner("some-other-cluster", ME.id), Owner(CLUSTER_ID, 1001)):
        with pytest.raises(ForeignDirectoryError, match=r"meta\.json: found cluster .* node 1000; allowed: cluster"):
            DiskStorage(directory, owner)
    assert content(directory, with_lock=False) == before
