"""`isray explore`: options, the document, exit codes."""

from __future__ import annotations

from tests.unit.experiments.cli.cli_helpers import Commands

QUIET = "lossy=0,fences=0"


def test_the_document(command: Commands) -> None:
    found = command.json("explore", "--bounds", QUIET + ",delays=all")
    assert found["complete"]
    assert found["violation"] is None
    assert (found["brokers"], found["generation"], found["mutant"]) == (3, "kip-966", None)
    assert found["kafka_release"] is None
    assert found["bounds"]["delays"] == -1
    assert found["states"] > found["distinct_states"] == 13
    assert found["states_per_second"] > 0


def test_the_document_says_the_release(command: Commands) -> None:
    named = ("--generation", "kip-497", "--kafka-release", "4.2.0", "--depth", "2")
    assert command.json("explore", *named)["kafka_release"] == "4.1.2"


def test_a_counterexample_is_printed_as_a_story(command: Commands) -> None:
    code, out, _ = command.run("explore", "--bounds", QUIET, "--mutant", "acks-all-answered-at-append")
    assert code == 1
    assert "1. a client sends record 0 to broker-0" in out
    assert "!! AcknowledgedIsCommitted" in out
