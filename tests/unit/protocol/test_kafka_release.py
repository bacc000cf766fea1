"""Kafka's releases: which one another release behaves as, and what each has."""

from __future__ import annotations

import pytest

from protocol.kafka_release import ADDED_REPLICAS_COMPLETE, LAST_KNOWN_LEADER_BY_RECORD, KafkaRelease, kafka_release


def test_a_release_behaves_as_the_last_one_that_changed_a_rule() -> None:
    releases = ["4.0", "4.0.2", "4.1", "4.1.0", "4.1.1", "4.2.1", "4.3", "4.3.1", "4.4.0"]
    expected = ["4.0", "4.0", "4.1.0", "4.1.0", "4.1.2", "4.1.2", "4.3", "4.3", "4.4"]
    assert [kafka_release(text).value for text in releases] == expected


@pytest.mark.parametrize("text", ["", "4", "3.9.0", "4.5.0", "4.4.0.1", "4.x", "4.-1", " 4.4"])
def test_other_texts_are_no_release(text: str) -> None:
    with pytest.raises(ValueError, match=r"^" + text.replace(".", r"\.") + "$"):
        kafka_release(text)


def test_a_change_holds_from_its_release_on() -> None:
    changes = (LAST_KNOWN_LEADER_BY_RECORD, ADDED_REPLICAS_COMPLETE)
    assert {release.value: [release.has(change) for change in changes] for release in KafkaRelease} == {
        "4.0": [False, False],
        "4.1.0": [False, False],
        "4.1.2": [True, False],
        "4.3": [True, True],
        "4.4": [True, True],
    }
