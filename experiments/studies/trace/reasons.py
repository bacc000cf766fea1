"""Why records were lost, and why a partition did not take writes: the rules that decide, each declared once.

A reason is the rule of the protocol, or of the model, by which failures became a loss or an outage. Which one holds is
decided in `trials/reasons.py`; the failures themselves are the *causes* beside it (docs/studies.md, "Why").
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """`key`: the name in traces and in gold. `sentence`: what happened. `source`: what the rule follows from."""

    def __init__(self, key: str, sentence: str, source: str) -> None:
        self.key, self.sentence, self.source = key, sentence, source

    # of losses
    ALL_COPIES_LOST = (
        "all-copies-lost",
        "every replica that had the records lost its tail or its disk before another one had them",
        "KIP-966, motivation; page cache",
    )
    ISR_MEMBER_LOST_TAIL = (
        "isr-member-lost-tail",
        "a member of the ISR came back without its tail and was elected as if it were in sync",
        "KIP-966, motivation (last replica standing)",
    )
    ELR_MEMBER_LOST_TAIL = (
        "elr-member-lost-tail",
        "a member of the ELR was elected without the tail that it had",
        "KIP-966, ELR and unclean shutdowns",
    )
    LAST_KNOWN_LEADER_LOST_TAIL = (
        "last-known-leader-lost-tail",
        "all members of the ELR returned unclean, and the last known leader was elected, which had lost its tail",
        "KIP-966, last known leader",
    )
    UNCLEAN_REPLICA_LOST_TAIL = (
        "unclean-replica-lost-tail",
        "an unclean election chose a replica that had been in sync and had lost its tail",
        "unclean.leader.election.enable",
    )
    UNCLEAN_REPLICA_BEHIND = (
        "unclean-replica-behind",
        "an unclean election chose a replica that was behind",
        "unclean.leader.election.enable",
    )
    RECOVERY_WITHOUT_HOLDER = (
        "recovery-without-holder",
        "the unclean recovery chose the longest log of those that answered; a replica with the records was down",
        "KIP-966, unclean recovery",
    )
    RECOVERY_SHORT_LOGS = (
        "recovery-short-logs",
        "the unclean recovery chose the longest log of all that answered, which lacked the records",
        "KIP-966, unclean recovery",
    )
    ACKS_1_NOT_REPLICATED = (
        "acks-1-not-replicated",
        "the leader failed before a follower had fetched what it had acknowledged with acks=1",
        "acks=1",
    )
    TRUNCATED = (
        "truncated",
        "a follower truncated to its high watermark, and was elected without what it had had",
        "KIP-101",
    )
    # of outages
    LEADER_SILENT = (
        "leader-silent",
        "the leader is down, and its session has not expired yet",
        "broker.session.timeout.ms",
    )
    LEADER_CUT_OFF = (
        "leader-cut-off",
        "the leader is alive, but isolated, paused or without its disk",
        "broker.session.timeout.ms",
    )
    LEADER_RESTARTED = (
        "leader-restarted",
        "the leader has been started again, and has not been elected anew yet",
        "broker registration",
    )
    LEADER_RECOVERS = (
        "leader-recovers",
        "the leader of an unclean election has yet to report that it recovered",
        "KIP-966, unclean recovery",
    )
    TAKEOVER = ("takeover", "the new leader is elected and does not answer yet", "leader election")
    ELECTION = ("election", "a replica that may lead is alive, and is about to be elected", "leader election")
    ELIGIBLE_DOWN = (
        "eligible-down",
        "all members of ISR and ELR are down, and no other replica may lead",
        "KIP-966, ELR; ISR before it",
    )
    ELIGIBLE_CUT_OFF = (
        "eligible-cut-off",
        "the members of ISR and ELR that are alive are isolated or paused",
        "broker.session.timeout.ms",
    )
    LAST_KNOWN_LEADER_DOWN = (
        "last-known-leader-down",
        "all members of the ELR returned unclean, and the last known leader is down",
        "KIP-966, last known leader",
    )
    RECOVERY_WAITS = (
        "recovery-waits",
        "an unclean recovery waits for the logs of replicas that are down",
        "KIP-966, unclean recovery",
    )
    RECOVERY_RUNS = (
        "recovery-runs",
        "an unclean recovery asks the replicas for their logs",
        "KIP-966, unclean recovery",
    )
    MEMBER_SILENT = (
        "member-silent",
        "writes wait for a member of the ISR that is down and has not been removed yet",
        "broker.session.timeout.ms, replica.lag.time.max.ms",
    )
    MEMBER_CUT_OFF = (
        "member-cut-off",
        "writes wait for a member of the ISR that is alive, but isolated, paused or without its disk",
        "replica.lag.time.max.ms",
    )
    MEMBER_RETURNED = (
        "member-returned",
        "writes wait for a member of the ISR that is back and has not fetched yet",
        "replica.lag.time.max.ms",
    )
    SLOW = ("slow", "writes wait for a leader or a member of the ISR that is alive and slow", "replica.lag.time.max.ms")
    TOO_FEW_ALIVE = (
        "too-few-alive",
        "the ISR fell below min ISR: fewer than min ISR replicas are alive",
        "min.insync.replicas",
    )
    REPLICAS_CUT_OFF = (
        "replicas-cut-off",
        "the ISR fell below min ISR: enough replicas are alive, but some are isolated, paused or without their disks",
        "min.insync.replicas",
    )
    CATCHING_UP = (
        "catching-up",
        "the ISR is below min ISR: enough replicas are alive, but some are still catching up",
        "min.insync.replicas",
    )
    UNATTRIBUTED = ("unattributed", "no rule of this list explains it", "")


BY_KEY = {reason.key: reason for reason in Reason}
"""The reasons by their names in files."""
