"""The invariants, one class each, by the names of the published model of KIP-966 (kip_966_properties), without the
suffix `Property`:

| in the model | here |
|---|---|
| TypeOK | the types themselves: frozen models and mypy |
| ReplicationQuorumSupersetProperty | ReplicationQuorumSuperset |
| LeaderCandidateCompletenessProperty, LeaderCompletenessProperty | the same; `history.py` looks for what was
  acknowledged in the leader's log |
| LogMatchingProperty, MetadataLogMatchingProperty | LogMatching, MetadataLogMatching |
| ConsistentReadProperty | ConsistentRead |
| its other invariants | the same |

The model has its rules of transition in its actions; here they are invariants as well: OneLeaderPerEpoch, EpochsRise,
HighWatermarkMonotone, RecoveryStateKept, RecoveringIsrIsOne, RecoveringLeaderIsAlone, ReassignmentKeepsMinIsr,
ReassignmentsEnd, LastKnownElrIsAssigned. The model has no unclean recovery (`invariants_recovery.py`) and none of what
is in `invariants_replicas.py`, `invariants_metrics.py` and `authorization.py`. Its liveness properties must hold after
the faults have ended (`experiments/hunt/fuzz/run.py`).
"""

from __future__ import annotations

from experiments.check import invariants_broker as broker
from experiments.check import invariants_controller as controller
from experiments.check import invariants_log as log
from experiments.check import invariants_metrics as metrics
from experiments.check import invariants_recovery as recovery
from experiments.check import invariants_replicas as replicas
from experiments.check.invariants_base import Invariant

__all__ = ["INVARIANTS", "Invariant"]

INVARIANTS: tuple[type[Invariant], ...] = (
    controller.OneLeaderPerEpoch,
    log.ConsistentRead,
    log.LeaderCompleteness,
    log.LeaderCandidateCompleteness,
    log.NoCommittedRecordLostGlobally,
    log.LogMatching,
    log.HighWatermarkMonotone,
    controller.ReplicationQuorumSuperset,
    controller.MinIsrRecoveryQuorum,
    controller.ValidControllerState,
    controller.ValidControllerIsrAndElr,
    controller.MetadataLogMatching,
    controller.EpochsRise,
    controller.RecoveryStateKept,
    controller.RecoveringIsrIsOne,
    broker.RecoveringLeaderIsAlone,
    controller.ReassignmentKeepsMinIsr,
    controller.ReassignmentsEnd,
    controller.LastKnownElrIsAssigned,
    broker.ValidBrokerState,
    broker.ValidReplicaState,
    broker.ValidFetcherState,
    recovery.RecoveryElectsRespondent,
    recovery.RecoveryResponsesAreCurrent,
    recovery.RecoveryElectsLongestLog,
    recovery.RecoveryHasRequiredResponses,
    recovery.RecoveryHearsHolder,
    recovery.RecoveryOnlyWithoutCleanCandidate,
    recovery.RecoveryIdsAreUnique,
    recovery.RecoveryLeavesNothingReachable,
    replicas.OneCopyPerSequence,
    replicas.ProducerEpochsRise,
    replicas.OnlyAssignedLogs,
    replicas.WritesAreAuthorized,
    replicas.LeadersCountWhatFollowersHold,
    replicas.FetchSessionsAgree,
    metrics.GaugesMatchTheirDefinitions,
    metrics.CountersMatchTheirDefinitions,
)
