"""Which running clusters can have a soak, and that one soak at a time has a cluster."""

from __future__ import annotations

from pathlib import Path
from signal import Signals
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState
from experiments.engines.clusters.node_commands import NodeState
from experiments.engines.ray.attached import ActionRefusedError
from experiments.hunt.soak.faults import FAULTS, OWN_RAY_ONLY
from experiments.hunt.soak.running import RunningSoakCluster, only_soak, require_possible
from experiments.support.errors import InputError
from protocol.features import Generation

POSSIBLE = tuple(kind for kind in FAULTS if kind not in OWN_RAY_ONLY)


def state(**options: object) -> ClusterState:
    made = ClusterOptions.model_validate({"name": "game", **options})
    return ClusterState(options=made, pid=1, started_ticks=1)


@pytest.mark.parametrize(
    ("options", "faults", "line"),
    [
        ({}, ("pause", "kill-raylet"), "--faults: found kill-raylet; allowed: a fault of nodes"),
        ({"generation": Generation.KIP_497}, POSSIBLE, "--name: found game, of generation kip-497; allowed"),
        ({"brokers": 2}, POSSIBLE, "--name: found game, with 2 brokers; allowed: 3 at least"),
    ],
)
def test_what_a_running_cluster_cannot_have_is_refused(
    options: dict[str, object], faults: tuple[str, ...], line: str
) -> None:
    with pytest.raises(InputError) as caught:
        require_possible(state(**options), faults)
    require_possible(state(), POSSIBLE)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(("listeners", "found"), [(None, "no"), ("SASL_SSL://127.0.0.1:0", "SASL_SSL")])
def test_kafkas_clients_need_listeners_that_let_them_in(listeners: str | None, found: str) -> None:
    given = {} if listeners is None else {"listeners": listeners}
    line = f"--kafka-clients: found game, with {found} listeners; allowed: a cluster with PLAINTEXT listeners"
    with pytest.raises(InputError, match=line):
        require_possible(state(config=given), POSSIBLE, kafka_clients=True)
    require_possible(state(config={"listeners": "PLAINTEXT://127.0.0.1:0"}), POSSIBLE, kafka_clients=True)


def test_a_second_soak_on_a_cluster_is_refused_until_the_first_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with only_soak(state()):
        with pytest.raises(InputError, match="game, on which a soak runs"), only_soak(state()):
            pytest.fail("two soaks on one cluster")
        with only_soak(state(name="other")):
            pass
    with only_soak(state()):
        pass


def test_killing_a_node_that_has_ended_by_itself_is_no_error_and_any_other_refusal_is() -> None:
    rows = {0: SimpleNamespace(state=NodeState.ENDED), 1: SimpleNamespace(state=NodeState.PAUSED)}

    def refuse(node: int, number: int) -> None:
        raise ActionRefusedError("refused", is_refused=True)

    spec = SimpleNamespace(broker_ids=(0, 1), controller_ids=(1000,))
    engine: Any = SimpleNamespace(spec=spec, cluster=SimpleNamespace(signal=refuse, rows=lambda: rows))
    cluster = RunningSoakCluster(engine)
    cluster.signal(0, Signals.SIGKILL)
    for node, number in ((0, Signals.SIGCONT), (1, Signals.SIGKILL)):
        with pytest.raises(ActionRefusedError):
            cluster.signal(node, number)
