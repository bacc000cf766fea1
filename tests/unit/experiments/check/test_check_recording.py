"""What a check says of a recording without what clients did: not that nothing is lost."""

from __future__ import annotations

from experiments.check.check_recording import CheckResult


def test_without_operations_of_clients_no_number_of_lost_records_is_known() -> None:
    found = CheckResult("a cluster", "ray", "kip-966", None, seed=0)
    assert found.lost_words() == "unknown, since what clients did is not in the recording"
    document = found.document()
    assert {name: document[name] for name in ("lost_acked", "lost_by_acks", "undecided")} == {
        "lost_acked": None,
        "lost_by_acks": None,
        "undecided": None,
    }
    found.operations = 2
    assert (found.lost_words(), found.document()["lost_acked"]) == ("0", 0)
