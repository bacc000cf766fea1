"""Rules of Kafka's KafkaRaftClient that a replica of the metadata log departs from on purpose.

Each is a switch of `QuorumConfig.kafka_rules`, which only `isray conformance` sets: a recorded answer is explained by a
rule if the replica under that rule gives exactly this answer. No cluster has any.
"""

from __future__ import annotations

from protocol.kafka_rules import KafkaRule

QUORUM_RULES: dict[str, KafkaRule] = {}
"""Every rule by name; `source` is a method of package `org.apache.kafka.raft`."""


def _declare(name: str, kafka: str, source: str) -> str:
    QUORUM_RULES[name] = KafkaRule(name, kafka, source)
    return name


CANDIDACY_RESUMED = _declare(
    "candidacy-resumed",
    kafka="A replica that voted for itself starts as candidate of that epoch, also where its leader is known.",
    source="QuorumState.initialize",
)
LEADER_WITHOUT_ENDPOINT = _declare(
    "leader-without-endpoint",
    kafka="A replica whose leader is not among the voters of its log starts unattached, and asks for pre-votes until "
    "it hears from a leader.",
    source="QuorumState.initialize, KafkaRaftClient.prospectiveTransitionAfterElectionLoss",
)
RESIGNED_ENTERS_NEXT_EPOCH = _declare(
    "resigned-enters-next-epoch",
    kafka="A resigned leader enters the next epoch at its election timeout.",
    source="KafkaRaftClient.pollResigned",
)
PRE_VOTE_GIVEN_UP = _declare(
    "pre-vote-given-up",
    kafka="A lost pre-vote makes the replica unattached, and one that timed out a follower of the leader that it knew.",
    source="KafkaRaftClient.pollProspective",
)
LEADER_IGNORED_IN_PRE_VOTE = _declare(
    "leader-ignored-in-pre-vote",
    kafka="A prospective that knows the leader stays prospective when that leader sends BeginQuorumEpoch.",
    source="KafkaRaftClient.maybeTransition",
)
ELECTION_TIMEOUT_KEPT = _declare(
    "election-timeout-kept",
    kafka="A replica without a leader that learns of a later epoch keeps its election timeout.",
    source="QuorumState.transitionToUnattached",
)
OBSERVER_KEEPS_LEADER = _declare(
    "observer-keeps-leader",
    kafka="An observer whose leader is silent stays its follower while it asks the other servers.",
    source="KafkaRaftClient.pollFollowerAsObserver",
)
ENDED_LEADER_PROTECTED = _declare(
    "ended-leader-protected",
    kafka="A follower that has fetched rejects pre-votes for its fetch timeout, also after its leader said that it "
    "leads no more.",
    source="FollowerState.canGrantVote",
)
VOTE_REPEATED = _declare(
    "vote-repeated",
    kafka="The candidate that has the vote gets it again without a comparison of the logs.",
    source="QuorumState.unattachedOrProspectiveCanGrantVote",
)
EPOCH_BEFORE_VOTER_KEY = _declare(
    "epoch-before-voter-key",
    kafka="A request for another disk of this node is rejected, but its epoch and leader are taken up.",
    source="KafkaRaftClient.handleVoteRequest, handleBeginQuorumEpochRequest",
)
UNCOMMITTED_REMOVAL_OBEYED = _declare(
    "uncommitted-removal-obeyed",
    kafka="A voter never starts an election after its removal is in its log, committed or not.",
    source="QuorumState.isVoter",
)
BLOCKED_CHANGE_REFUSED = _declare(
    "blocked-change-refused",
    kafka="A change that cannot be appended at once is answered REQUEST_TIMED_OUT at once, before all other checks.",
    source="internals.AddVoterHandler, internals.RemoveVoterHandler",
)
CAUGHT_UP_ONCE = _declare(
    "caught-up-once",
    kafka="A replica may be added if it had all records once within the last hour.",
    source="LeaderState.isReplicaCaughtUp",
)
LAST_VOTER_NOT_FOUND = _declare(
    "last-voter-not-found",
    kafka="The removal of the last voter is answered VOTER_NOT_FOUND.",
    source="VoterSet.removeVoter",
)
TRUNCATED_VOTERS_MISSED = _declare(
    "truncated-voters-missed",
    kafka="A follower that truncated its log misses the changes of the voters that replace what was truncated.",
    source="internals.KRaftControlRecordStateMachine.truncateNewEntries",
)
