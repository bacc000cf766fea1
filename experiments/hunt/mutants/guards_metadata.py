"""Guards of the metadata log, of the controller's metrics and of the right to change metadata."""

from __future__ import annotations

from dataclasses import replace

from experiments.faults import recipes
from experiments.faults.controls import OPERATOR
from experiments.faults.kinds.operations import Deny
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.mutants.mutant import Mutant, PlanFocus
from experiments.hunt.mutants.patches import Original, around, constant, with_arguments
from experiments.hunt.mutants.scripts import scripted
from protocol.config import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    SUPER_USERS,
    UNCLEAN_RECOVERY_STRATEGY,
)
from protocol.controller import elections
from protocol.controller.metrics import ControllerMetrics, PartitionGauges
from protocol.nodes.broker_metadata import BrokerMetadata
from protocol.nodes.metadata_feed import LogEntries
from protocol.quorum.log import QuorumLog


def _unflushed_metadata(original: Original, self: QuorumLog) -> None:
    if self.last_epoch < 1:
        original(self)


def _replay_again(original: Original, self: BrokerMetadata, item: LogEntries) -> None:
    original(self, item)
    original(self, item)


def _first_comes_last(original: Original, self: BrokerMetadata, item: LogEntries) -> None:
    """Records are replayed in another order than that of the log: the first of several comes last."""
    if not item.is_snapshot and len(item.records) > 1:
        item = replace(item, records=(*item.records[1:], item.records[0]))
    original(self, item)


GUARDS: tuple[Mutant, ...] = (
    Mutant(
        name="metadata-answered-before-it-is-durable",
        guard="The controller replays and acknowledges flushed metadata records only (contract, rule 4).",
        instead="It does so once the records are in the page cache.",
        expected=("MetadataLogMatching",),
        patches=(around(QuorumLog, "flush", _unflushed_metadata),),
        focus=PlanFocus(Bias(themes=("controller gone",)), why="The controller's machine fails."),
    ),
    Mutant(
        name="metadata-applied-twice",
        guard="A broker replays each record of the metadata log once.",
        instead="It replays each batch twice.",
        expected=("MetadataLogMatching", "ProtocolInvariantError"),
        patches=(around(BrokerMetadata, "_replay", _replay_again),),
    ),
    Mutant(
        name="metadata-applied-out-of-order",
        guard="A broker replays the records of the metadata log in their order.",
        instead="It replays the first of several records last.",
        expected=("MetadataLogMatching", "ProtocolInvariantError"),
        patches=(around(BrokerMetadata, "_replay", _first_comes_last),),
    ),
    Mutant(
        name="gauges-ignore-configs",
        guard="A gauge is updated when a config changes on which it depends (I2-I4).",
        instead="It follows with the next change of the partition.",
        expected=("GaugesMatchTheirDefinitions",),
        patches=(constant(PartitionGauges, "_concerned", ()),),
        focus=PlanFocus(
            Bias(replicas=3, weights={"configure": 3, "crash": 1}), why="Min ISR changes while brokers are down."
        ),
    ),
    Mutant(
        name="recoveries-counted-by-message",
        guard="The counter of unclean recoveries counts partitions that have got a leader (I5).",
        instead="It counts the messages of the recovery manager.",
        expected=("CountersMatchTheirDefinitions",),
        patches=(with_arguments(ControllerMetrics, "recovered", partition_count=lambda count: 1),),
        focus=scripted(
            "Three partitions are recovered at once.",
            recipes.kill(0, 4_000, 9_000),
            recipes.kill(1, 4_000, 9_000),
            recipes.kill(2, 4_000, 9_000),
            partitions=3,
            config={UNCLEAN_RECOVERY_STRATEGY: "proactive"},
        ),
    ),
    Mutant(
        name="elections-not-authorized",
        guard="A principal needs CLUSTER_ACTION on the cluster to elect leaders (G27, G32).",
        instead="Anyone may.",
        expected=("ChangesAreAuthorized",),
        patches=(constant(elections, "require_cluster", None),),
        focus=scripted(
            "The client requests a preferred election, which it is denied at that time.",
            recipes.kill(0, 3_000, 6_000),
            Deny(at_ms=4_000, duration_ms=6_000, operation="cluster_action"),
            elect_at_ms=(9_000,),
            config={
                AUTHORIZER_CLASS_NAME: "standard",
                SUPER_USERS: OPERATOR,
                ALLOW_EVERYONE_IF_NO_ACL_FOUND: True,
            },
        ),
    ),
)
