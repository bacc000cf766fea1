"""What an analysis refuses before it starts Spark, and the lines in which it says why Spark failed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from experiments.studies.pipeline.analysis import check_master
from experiments.support.errors import InputError


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that accepts connections."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_a_master_that_does_not_answer_is_named() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"
    with pytest.raises(InputError, match=r"--spark-master: found no answer from 127\.0\.0\.1:\d+ .*; allowed: the URL"):
        check_master(master)


def test_one_of_several_masters_is_enough(listening: int) -> None:
    check_master(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{listening}")


@pytest.mark.parametrize("master", ["local[2]", "k8s://https://10.0.0.1:6443"])
def test_masters_of_other_kinds_are_left_to_spark(master: str) -> None:
    check_master(master)
