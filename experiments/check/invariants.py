"""The invariants, one class each, by the names of the published model of KIP-966 (kip_966_properties), without the
suffix `Property`:

| in the model | here |
|---|---|
| TypeOK | the types themselves: frozen models and mypy |
| ValidBrokerState, ValidReplicaState, ValidFetcherState | the same (`invariants_broker.py`) |
| ValidControllerState, ValidControllerIsrAndElr | the same (`invariants_controller.py`) |
| ReplicationQuorumSupersetProperty | ReplicationQuorumSuperset |
| LeaderCandidateCompletenessProperty, LeaderCompletenessProperty | the same (`invariants_log.py`); `history.py` looks
  for what was acknowledged in the leader's log |
| LogMatchingProperty, MetadataLogMatchingProperty | LogMatching, MetadataLogMatching |
| NoCommittedRecordLostGlobally, MinIsrRecoveryQuorum | the same |
| ConsistentReadProperty | ConsistentRead |

The model has its rules of transition in its actions; here they are invariants as well: OneLeaderPerEpoch, EpochsRise,
HighWatermarkMonotone, RecoveryStateKept, RecoveringIsrIsOne, RecoveringLeaderIsAlone, ReassignmentKeepsMinIsr. The
model has no unclean recovery; its rules are in `invariants_recovery.py`. What brokers keep and count is in
`invariants_replicas.py`, metrics are in `invariants_metrics.py`, the rights to change metadata in `authorization.py`.
The model's liveness properties must hold after the faults have ended (`experiments/hunt/fuzz/run.py`).
"""

from __future__ import annotations

from experiments.check.invariants_base import Invariant
from experiments.check.invariants_broker import (
    RecoveringLeaderIsAlone,
    ValidBrokerState,
    ValidFetcherState,
    ValidReplicaState,
)
from experiments.check.invariants_controller import (
    EpochsRise,
    MetadataLogMatching,
    MinIsrRecoveryQuorum,
    OneLeaderPerEpoch,
    ReassignmentKeepsMinIsr,
    RecoveringIsrIsOne,
    RecoveryStateKept,
    ReplicationQuorumSuperset,
    ValidControllerIsrAndElr,
    ValidControllerState,
)
from experiments.check.invariants_log import (
    ConsistentRead,
    HighWatermarkMonotone,
    LeaderCandidateCompleteness,
    LeaderCompleteness,
    LogMatching,
    NoCommittedRecordLostGlobally,
)
from experiments.check.invariants_metrics import CountersMatchTheirDefinitions, GaugesMatchTheirDefinitions
from experiments.check.invariants_recovery import (
    RecoveryElectsLongestLog,
    RecoveryElectsRespondent,
    RecoveryHasRequiredResponses,
    RecoveryHearsHolder,
    RecoveryIdsAreUnique,
    RecoveryLeavesNothingReachable,
    RecoveryOnlyWithoutCleanCandidate,
    RecoveryResponsesAreCurrent,
)
from experiments.check.invariants_replicas import (
    FetchSessionsAgree,
    LeadersCountWhatFollowersHold,
    OneCopyPerSequence,
    OnlyAssignedLogs,
    ProducerEpochsRise,
    WritesAreAuthorized,
)

__all__ = ["INVARIANTS", "Invariant"]

INVARIANTS: tuple[type[Invariant], ...] = (
    OneLeaderPerEpoch,
    ConsistentRead,
    LeaderCompleteness,
    LeaderCandidateCompleteness,
    NoCommittedRecordLostGlobally,
    LogMatching,
    HighWatermarkMonotone,
    ReplicationQuorumSuperset,
    MinIsrRecoveryQuorum,
    ValidControllerState,
    ValidControllerIsrAndElr,
    MetadataLogMatching,
    EpochsRise,
    RecoveryStateKept,
    RecoveringIsrIsOne,
    RecoveringLeaderIsAlone,
    ReassignmentKeepsMinIsr,
    ValidBrokerState,
    ValidReplicaState,
    ValidFetcherState,
    RecoveryElectsRespondent,
    RecoveryResponsesAreCurrent,
    RecoveryElectsLongestLog,
    RecoveryHasRequiredResponses,
    RecoveryHearsHolder,
    RecoveryOnlyWithoutCleanCandidate,
    RecoveryIdsAreUnique,
    RecoveryLeavesNothingReachable,
    OneCopyPerSequence,
    ProducerEpochsRise,
    OnlyAssignedLogs,
    WritesAreAuthorized,
    LeadersCountWhatFollowersHold,
    FetchSessionsAgree,
    GaugesMatchTheirDefinitions,
    CountersMatchTheirDefinitions,
)
