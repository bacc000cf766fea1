"""Disks that outlive their cluster: what is kept, what a second cluster on them may change, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.kept_disks import KeptDisks
from actors.members import Member, disks_of, resume
from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState
from experiments.engines.ray import kept as module
from experiments.engines.ray.kept import (
    FILE,
    KeptCluster,
    find_kept,
    is_kept,
    kept_options,
    lock_disks,
    mark_to_keep,
    read_kept,
)
from experiments.support.errors import InputError
from protocol.features import Generation

OPTIONS = ClusterOptions(name="mine", brokers=2, generation=Generation.KIP_497, config={"a": "1", "b": "2"})


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    folder = tmp_path / "disks"
    folder.mkdir()
    kept = KeptCluster(options=OPTIONS, run="isray-1", incarnations={0: 3}, disks={0: 1}, losses={0: ("all", 0)})
    (folder / FILE).write_text(kept.model_dump_json(), encoding="utf-8")
    return folder


def state_of(disks: Path | None) -> ClusterState:
    return ClusterState(options=OPTIONS, pid=1, started_ticks=1, disks=None if disks is None else str(disks))


def test_nodes_go_on_where_their_disks_ended(disks: Path) -> None:
    members = {0: Member(), 1: Member()}

    resume(members, read_kept(disks).disks_in(disks))

    assert (members[0].incarnation, members[0].disk, members[0].loss_kind) == (3, 1, "all")
    assert (members[1].incarnation, members[1].disk, members[1].loss_kind) == (0, 0, "none")
    assert disks_of("isray-1", disks, members) == KeptDisks(
        "isray-1", disks, {0: 3, 1: 0}, {0: 1, 1: 0}, {0: ("all", 0)}
    )


def test_a_second_cluster_has_the_nodes_of_its_disks_and_may_have_other_configs(disks: Path) -> None:
    asked: dict[str, object] = {"brokers": 2, "generation": None, "name": None, "trace": "/t"}

    options = kept_options(read_kept(disks), disks, asked, {"b": "3"})

    update = {"config": {"a": "1", "b": "3"}, "disks": str(disks), "trace": "/t"}
    assert options == OPTIONS.model_copy(update=update)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"brokers": 3}, "--brokers: found 3; allowed: 2, as the disks"),
        ({"controllers": 3}, "--controllers: found 3; allowed: 1"),
        ({"generation": Generation.KIP_966}, "--generation: found kip-966; allowed: kip-497"),
        ({"racks": ("a", "b")}, "allowed: none"),
    ],
)
def test_another_number_of_nodes_generation_or_rack_is_refused(
    disks: Path, asked: dict[str, object], line: str
) -> None:
    with pytest.raises(InputError) as error:
        kept_options(read_kept(disks), disks, asked, {})
    assert line in str(error.value)


def test_disks_are_found_by_their_folder_or_by_the_name_of_the_cluster(disks: Path, runtime: Path) -> None:
    assert find_kept(str(disks)) == disks
    with pytest.raises(InputError, match="--from: found mine"):
        find_kept("mine")

    assert mark_to_keep(state_of(disks), {"broker-0": None}) == disks

    assert find_kept("mine") == disks
    assert is_kept(disks)


def test_a_folder_without_disks_is_refused(tmp_path: Path, runtime: Path) -> None:
    with pytest.raises(InputError, match=f"without a {FILE}"):
        read_kept(tmp_path)
    (tmp_path / FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="a damaged file"):
        read_kept(tmp_path)
    with pytest.raises(InputError, match="--from"):
        find_kept(str(tmp_path / "nothing"))


def test_disks_in_use_are_refused_and_a_lock_withdraws_the_mark_of_the_last_end(disks: Path, runtime: Path) -> None:
    mark_to_keep(state_of(disks), {})
    lock = lock_disks(disks, "mine")

    assert not is_kept(disks)
    with pytest.raises(InputError, match="in use by process"):
        lock_disks(disks, "other")
    lock.close()
    lock_disks(disks, "other").close()


def test_disks_of_other_machines_and_of_a_cluster_that_was_never_ready_cannot_be_kept(
    disks: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.socket, "gethostname", lambda: "here")

    with pytest.raises(InputError, match="broker-1 on there"):
        mark_to_keep(state_of(disks), {"broker-0": "here", "broker-1": "there"})
    for state in (state_of(None), state_of(disks / "none")):
        with pytest.raises(InputError, match="has no disks"):
            mark_to_keep(state, {})
