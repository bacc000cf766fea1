"""`isray explore`: options, the document, exit codes."""

from __future__ import annotations

import json
import sys

import pytest

from experiments.cli import main

QUIET = "lossy=0,fences=0"


def explore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["isray", "explore", *options])
    with pytest.raises(SystemExit) as left:
        main.run()
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def test_the_document(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = explore(capsys, monkeypatch, "--bounds", QUIET + ",delays=all", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["complete"]
    assert found["violation"] is None
    assert (found["brokers"], found["generation"], found["mutant"]) == (3, "kip-966", None)
    assert found["bounds"]["delays"] == -1
    assert found["states"] > found["distinct_states"] == 13
    assert found["states_per_second"] > 0


def test_a_counterexample_is_printed_as_a_story(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--bounds", QUIET, "--mutant", "acks-all-answered-at-append")
    code, out, _ = explore(capsys, monkeypatch, *options)
    assert code == 1
    assert "1. a client sends record 0 to broker-0" in out
    assert "!! AcknowledgedIsCommitted" in out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--mutant", "no-such"), "no-such"),
        (("--generation", "kip-1"), "kip-497"),
        (("--bounds", "lossy=-1"), "lossy=-1"),
        (("--bounds", "lossy=\u0661"), "lossy=\u0661"),
        (("--bounds", "lucky=1"), "records"),
        (("--bounds", "lossy=all"), "lossy=all"),
        (("--brokers", "2", "--min-isr", "3"), "--min-isr"),
    ],
)
def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], named: str
) -> None:
    code, out, err = explore(capsys, monkeypatch, *options)
    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1
