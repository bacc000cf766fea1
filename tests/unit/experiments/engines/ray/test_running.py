"""A cluster from its start to its end, without Ray: when its disks stay, and who holds their lock."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from actors.kept_disks import KeptDisks
from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState, read_state
from experiments.engines.port import ClusterSpec
from experiments.engines.ray import running
from experiments.engines.ray.kept import lock_disks, mark_to_keep, read_kept
from experiments.engines.ray.session import ControlStoreLostError, RaySession
from experiments.engines.ray.tap import ClusterRecorder
from experiments.support.errors import InputError
from protocol.config import ClusterConfig
from protocol.features import Generation


class Cluster:
    """Stands for `ActorCluster`, with its folder in `where`."""

    where: Path

    def __init__(self, *_: object, **__: object) -> None:
        self.run, self.folder, self.keeps_disks = "isray-1", self.where / "disks", False
        self.incarnations = {0: 1}
        self.is_abandoned = False

    def use_disks(self, kept: KeptDisks) -> None:
        self.run, self.folder, self.keeps_disks = kept.run, kept.folder, True
        self.incarnations = {node: number + 1 for node, number in kept.incarnations.items()}

    def kept_disks(self) -> KeptDisks:
        return KeptDisks(self.run, self.folder, self.incarnations, {}, {})

    def abandon(self) -> None:
        self.is_abandoned = True

    def close(self) -> None:
        assert not self.is_abandoned, "Ray's control store is gone"
        if not self.keeps_disks:
            shutil.rmtree(self.folder)


class Supervisor:
    """Stands for the supervisor: a signal ends the cluster at its first poll, at which `meanwhile` is called."""

    fails: Exception | None = None
    meanwhile: Callable[[ClusterState], object] = staticmethod(lambda state: None)

    def __init__(self, cluster: Cluster, spec: object, state: ClusterState, report: object, tap: object) -> None:
        self.state = state

    def start(self) -> None:
        if self.fails is not None:
            raise self.fails

    def carry_out(self, command: object) -> None:
        """No command comes."""

    def poll(self) -> None:
        self.meanwhile(self.state)
        signal.raise_signal(signal.SIGTERM)

    def resume_all(self) -> None:
        """Nothing is paused."""

    def finish_recording(self) -> None:
        """Nothing is recorded."""


@pytest.fixture(autouse=True)
def without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(address: str | None) -> Iterator[RaySession]:
        yield RaySession("host:1", None)

    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(Cluster, "where", tmp_path, raising=False)
    monkeypatch.setattr(running, "ActorCluster", Cluster)
    monkeypatch.setattr(running, "Supervisor", Supervisor)
    monkeypatch.setattr(running, "ray_session", session)
    monkeypatch.setattr(running, "machines", list)
    monkeypatch.setattr(running, "serving_remote_commands", lambda run, answer: nullcontext())
    monkeypatch.setattr(running, "POLL_S", 0.0)


def run(options: ClusterOptions) -> list[ClusterState]:
    ready: list[ClusterState] = []
    config = ClusterConfig.of(Generation.KIP_966)
    assert running.run_cluster(options, config, ready.append, lambda text: None, no_recorder)
    return ready


def no_recorder(folder: Path, name: str, spec: ClusterSpec) -> ClusterRecorder:
    raise AssertionError("nothing is to be recorded")


def test_disks_are_removed_with_their_cluster(tmp_path: Path) -> None:
    [ready] = run(ClusterOptions())

    assert ready.disks == str(tmp_path / "disks")
    assert not (tmp_path / "disks").exists()
    assert read_state("default") is None


def test_disks_that_are_kept_start_again_as_often_as_one_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = tmp_path / "disks"
    monkeypatch.setattr(Supervisor, "meanwhile", staticmethod(lambda state: mark_to_keep(state, {})))
    run(ClusterOptions(brokers=2))
    assert read_kept(disks).incarnations == {0: 1}

    run(ClusterOptions(brokers=2, disks=str(disks)))
    assert read_kept(disks).incarnations == {0: 2}
    assert read_kept(disks).options == ClusterOptions(brokers=2), "where the disks are is no option of theirs"

    monkeypatch.setattr(Supervisor, "meanwhile", staticmethod(lambda state: None))
    run(ClusterOptions(brokers=2, disks=str(disks)))
    assert not disks.exists()


def test_a_second_cluster_on_the_disks_is_refused_while_the_first_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def meanwhile(state: ClusterState) -> None:
        with pytest.raises(InputError, match="in use") as error:
            lock_disks(Path(str(state.disks)), "second")
        refused.append(str(error.value))

    monkeypatch.setattr(Supervisor, "meanwhile", staticmethod(meanwhile))
    run(ClusterOptions())

    assert "(cluster default)" in refused[0]


def test_a_start_that_fails_leaves_kept_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = tmp_path / "disks"
    monkeypatch.setattr(Supervisor, "meanwhile", staticmethod(lambda state: mark_to_keep(state, {})))
    run(ClusterOptions())
    monkeypatch.setattr(Supervisor, "fails", running.NotReadyError("not ready"))

    with pytest.raises(running.NotReadyError):
        run(ClusterOptions(disks=str(disks)))

    assert read_kept(disks).incarnations == {0: 1}
    lock_disks(disks, "again").close()


def test_nothing_is_asked_of_a_ray_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "fails", ControlStoreLostError("lost"))
    lines: list[str] = []

    config = ClusterConfig.of(Generation.KIP_966)
    assert not running.run_cluster(ClusterOptions(), config, lambda state: None, lines.append, no_recorder)

    assert lines == ["lost"]
