"""The sentences that explain changes, against states written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.engines.port import TraceEvent
from experiments.play.rules import ERRORS, KEPT, RULES, Explainer, explain_partition
from protocol.errors import ErrorCode
from protocol.events.broker import BrokerStateChanged, HighWatermarkAdvanced
from protocol.events.controller import BrokerRegistered, PartitionChanged, SessionExpired
from protocol.events.host import IncarnationEnded
from protocol.events.quorum import QuorumRoleChanged, QuorumVotersChanged
from protocol.events.registry import KINDS
from protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)


def state(
    epochs: str, isr: str, elr: str = "", last: str = "", leader: int = 0, recovering: bool = False, minimum: int = 2
) -> PartitionChanged:
    """A state of t-0 with replicas 0, 1, 2; `epochs` are leader and partition epoch, sets are digits."""
    in_sync, eligible, known = (tuple(map(int, text)) for text in (isr, elr, last))
    leader_epoch, partition_epoch = map(int, epochs.split("/"))
    return PartitionChanged(
        T0, leader, leader_epoch, partition_epoch, (0, 1, 2), in_sync, eligible, known, -1, recovering, minimum
    )


OFFLINE = state("1/1", "", "01", leader=-1)


@pytest.mark.parametrize(
    ("before", "after", "beginning"),
    [
        (
            state("0/0", "012"),
            state("0/1", "01"),
            "Broker 2 leaves the ISR of t-0, since its session ended; ISR is {0 1}",
        ),
        (state("0/1", "01"), state("0/2", "012"), "Broker 2 joins the ISR of t-0: it has caught up; ISR is {0 1 2}"),
        (state("0/1", "01"), state("0/2", "0", "1"), "ELR keeps broker 1 for t-0: it left an ISR below min ISR 2"),
        (state("0/2", "0", "1"), state("0/3", "02"), "ELR drops broker 1 for t-0: ISR has min ISR 2 members"),
        (state("0/2", "0", "1"), state("0/3", "01"), "Broker 1 leaves the ELR of t-0: it is in ISR"),
        (
            state("0/2", "0", "1"),
            state("0/3", "0", "", "1"),
            "Broker 1 goes from ELR to last known ELR of t-0: it came",
        ),
        (state("0/0", "01"), state("1/1", "1", leader=1), "Broker 1 leads t-0 in epoch 1: the first live replica"),
        (
            state("0/0", "", "12", leader=-1),
            state("1/1", "2", "1", leader=2),
            "Broker 2 leads t-0 in epoch 1: ELR keeps",
        ),
        (state("0/0", "0"), state("1/1", "", "01", leader=-1), "t-0 has no leader: no broker of ISR {0} or ELR {0 1}"),
        (
            OFFLINE,
            state("2/2", "2", leader=2, recovering=True),
            "Broker 2 leads t-0 in epoch 2 after an unclean election",
        ),
        (
            OFFLINE,
            state("2/2", "2", "", "01", 2, True),
            "Broker 0 goes from ELR to last known ELR of t-0: the election",
        ),
        (state("2/2", "2", "", "", 2, True), state("2/3", "2", leader=2), "The leader of t-0 has recovered"),
        (state("0/0", "012"), state("0/1", "012", minimum=1), "min ISR of t-0 is 1"),
        (None, state("0/0", "012"), "t-0 is created: leader 0, ISR {0 1 2}, min ISR 2"),
    ],
)
def test_each_change_of_a_partition_has_its_sentence(
    before: PartitionChanged | None, after: PartitionChanged, beginning: str
) -> None:
    texts = [text for text, _ in explain_partition(before, after, {2: "its session ended"})]
    assert [text for text in texts if text.startswith(beginning)]


def test_the_elr_is_explained_by_kip_966_and_a_lag_by_its_config() -> None:
    found = explain_partition(state("0/1", "01"), state("0/2", "0", "1"), {})
    late = "Broker 1 leaves the ISR of t-0, since it did not catch up with the leader in time; ISR is {0}"
    kept = "ELR keeps broker 1 for t-0: it left an ISR below min ISR 2 with all committed records"
    assert [*found] == [(late, "replica.lag.time.max.ms"), (kept, "KIP-966")]


def test_a_state_is_explained_once_though_two_controllers_report_it() -> None:
    explainer = Explainer()
    for node in (1000, 1001):
        explainer.add(TraceEvent(5, node, state("0/0", "012")))
    assert [it.text for it in explainer.sentences] == ["t-0 is created: leader 0, ISR {0 1 2}, min ISR 2"]


def test_the_reason_for_leaving_is_what_happened_last_to_the_broker() -> None:
    explainer = Explainer()
    for trace in (
        state("0/0", "012"),
        BrokerRegistered(1, 7, False, True),
        state("0/1", "02"),
        SessionExpired(2),
        BrokerRegistered(2, 8, True, False),
        state("0/2", "0", "2"),
    ):
        explainer.add(TraceEvent(5, 1000, trace))
    texts = [it.text for it in explainer.sentences]
    assert "Broker 1 leaves the ISR of t-0, since it shuts down in a controlled way; ISR is {0 2}" in texts
    assert "Broker 2 leaves the ISR of t-0, since its session ended; ISR is {0}" in texts


def test_a_shutdown_and_a_second_start_are_distinguished_by_the_state_and_the_epoch_of_the_broker() -> None:
    explainer = Explainer()
    for trace in (
        state("0/0", "012"),
        BrokerRegistered(1, 7, False, False),
        BrokerRegistered(2, 8, False, False),
        BrokerStateChanged(2, "shutting down"),
        BrokerRegistered(2, 8, True, False),
        state("0/1", "01"),
        BrokerRegistered(1, 9, True, False),
        state("0/2", "0", "1"),
    ):
        explainer.add(TraceEvent(5, 1000, trace))
    texts = [it.text for it in explainer.sentences]
    assert "Broker 2 leaves the ISR of t-0, since it shuts down in a controlled way; ISR is {0 1}" in texts
    assert "Broker 1 leaves the ISR of t-0, since it was started again; ISR is {0}" in texts


def test_high_watermarks_that_follow_each_other_are_one_sentence() -> None:
    explainer = Explainer()
    for offset in range(3 * KEPT):
        explainer.add(TraceEvent(offset, 0, HighWatermarkAdvanced(T0, offset, 0)))
    assert [it.text for it in explainer.sentences] == [f"The high watermark of t-0 is {3 * KEPT - 1}"]


def test_rules_and_errors_are_about_what_exists() -> None:
    assert set(RULES) <= set(KINDS)
    assert set(ERRORS) <= set(ErrorCode.__members__)


@pytest.mark.parametrize(
    ("loss", "lost", "text"),
    [
        ("none", (), "is killed; its disk loses nothing"),
        ("unflushed", (), "is killed; its disk loses nothing"),
        ("unflushed", ((TopicPartition("t", 0), 3),), "is killed; its disk loses records: 3 of t-0"),
        ("unflushed", None, "is killed; what its disk loses (unflushed) is found at its next start"),
        ("all", None, "is killed; its disk is replaced by an empty one"),
    ],
)
def test_a_loss_that_is_not_known_is_not_called_nothing(loss: str, lost: Any, text: str) -> None:
    explainer = Explainer()
    explainer.add(TraceEvent(5, 0, IncarnationEnded(loss, lost)))
    assert [it.text for it in explainer.sentences] == [text]


def test_elections_and_voters_of_the_quorum_are_explained() -> None:
    explainer = Explainer()
    for trace in (
        QuorumRoleChanged("candidate", 4, -1),
        QuorumRoleChanged("follower", 4, 1000),
        QuorumVotersChanged(("1000:aaa", "1002:b:c")),
    ):
        explainer.add(TraceEvent(5, 1000, trace))
    assert [(it.text, it.rule[:8]) for it in explainer.sentences] == [
        ("stands for election as the leader of the quorum in epoch 4", "KIP-595:"),
        ("The voters of the metadata quorum are {1000 1002}", "KIP-853:"),
    ]
