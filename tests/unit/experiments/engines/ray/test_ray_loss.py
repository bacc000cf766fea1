"""What Ray prints is kept out of a command's output, and the loss of its control store ends a call that would block."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from experiments.engines.ray import session
from experiments.engines.ray.session import (
    ControlStoreLostError,
    ask_control_store,
    ray_output_to_stderr,
    ray_session,
    require_control_store,
)


@pytest.fixture
def store() -> Iterator[str]:
    """The address of something that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def lost_store(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of nothing, which counts as lost at once."""
    monkeypatch.setattr(session, "LOST_AFTER_S", 0.0)
    monkeypatch.setattr(session, "_TRY_AGAIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_control_store_that_accepts_connections_is_not_lost(store: str) -> None:
    require_control_store(store)
    assert ask_control_store(lambda: 7, store) == 7


def test_a_control_store_that_refuses_connections_is_lost(lost_store: str) -> None:
    with pytest.raises(ControlStoreLostError, match=f"the control store of Ray at {lost_store} is lost"):
        require_control_store(lost_store)


def test_a_call_that_blocks_ends_when_the_control_store_is_lost(
    lost_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LOOK_AFTER_S", 0.0)
    never = threading.Event()
    with pytest.raises(ControlStoreLostError):
        ask_control_store(never.wait, lost_store)
    never.set()


def test_the_error_of_a_call_is_raised(store: str) -> None:
    def fail() -> None:
        raise ValueError("no such actor")

    with pytest.raises(ValueError, match="no such actor"):
        ask_control_store(fail, store)


@pytest.mark.parametrize("block", [ray_output_to_stderr, ray_session], ids=["alone", "connected already"])
def test_other_threads_print_to_standard_error(
    block: Callable[[], AbstractContextManager[object]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_connected", lambda: "127.0.0.1:1")

    def print_as_ray() -> None:
        print("(raylet) a node is lost")

    with block():
        print("record 1")
        thread = threading.Thread(target=print_as_ray)
        thread.start()
        thread.join()
        print("record 2")
    assert capsys.readouterr() == ("record 1\nrecord 2\n", "(raylet) a node is lost\n")
