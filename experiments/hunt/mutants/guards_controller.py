"""Guards of the controller: which proposals it accepts, which replicas it elects, ISR and ELR, and reassignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from experiments.faults import recipes
from experiments.faults.kinds.administration import Reassign
from experiments.faults.kinds.processes import Restart
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.mutants.mutant import Mutant, PlanFocus
from experiments.hunt.mutants.patches import Original, around, constant, with_arguments
from experiments.hunt.mutants.scripts import BROKERS, CONFIG, END_MS, TOPIC, scripted
from protocol.broker import lifecycle, lifecycle_manager
from protocol.broker.flushing import Flusher
from protocol.broker.lifecycle_manager import BrokerLifecycleManager
from protocol.config import (
    UNCLEAN_LEADER_HOOK,
)
from protocol.contract import Storage
from protocol.controller import alter_partition, brokers, partition_change, reassignments
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import ChangeRequest, _Assignment, _Eligible
from protocol.controller.partition_election import Candidates, Elected
from protocol.controller.sending_order import SendingOrder
from protocol.ids import NO_EPOCH, NO_LEADER, TopicIdPartition
from protocol.messages.control import PartitionIsrProposal
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata import image as metadata_image
from protocol.metadata.partition import PartitionState

STORED = ("LeaderCandidateCompleteness", "LeaderCompleteness", "NoCommittedRecordLostGlobally", "History.LostRecord")
QUORUM = ("ReplicationQuorumSuperset", *STORED)
INCOMPLETE = PlanFocus(
    Bias(weights={"crash": 2, "power_loss": 2, "cut": 1}, within_tolerance=False),
    why="More replicas lose data than the promise allows, so no replica is left that is known to be complete.",
)
LOSSES = PlanFocus(
    Bias(replicas=3, min_isr=3, weights={"crash": 2, "power_loss": 1, "heartbeat_loss": 1}),
    why="Replicas that leave the ISR enter the ELR, and some of them lose records.",
)
MOVES = PlanFocus(
    Bias(brokers=5, weights={"reassign": 2, "crash": 1, "cut": 1}, config=dict(CONFIG)),
    why="Partitions move while brokers fail.",
)


def _partition_of(state: ControllerState, proposal: PartitionIsrProposal) -> PartitionState | None:
    return state.image.partition(TopicIdPartition(proposal.topic_id, proposal.partition_id))


def _any_partition_epoch(
    original: Original, state: ControllerState, leader: int, proposal: PartitionIsrProposal
) -> object:
    if (partition := _partition_of(state, proposal)) is not None:
        proposal = proposal.model_copy(update={"partition_epoch": partition.partition_epoch})
    return original(state, leader, proposal)


def _any_leader(original: Original, state: ControllerState, leader: int, proposal: PartitionIsrProposal) -> object:
    if (partition := _partition_of(state, proposal)) is not None:
        if partition.leader in [member.broker_id for member in proposal.new_isr]:
            leader = partition.leader
        epochs = {"leader_epoch": partition.leader_epoch, "partition_epoch": partition.partition_epoch}
        proposal = proposal.model_copy(update=epochs)
    return original(state, leader, proposal)


def _propose_with_fenced(
    original: Original, state: ControllerState, leader: int, partition: object, proposal: PartitionIsrProposal
) -> object:
    active = tuple(member for member in proposal.new_isr if state.image.is_active(member.broker_id))
    return original(state, leader, partition, proposal.model_copy(update={"new_isr": active}))


def _without_unclean_shutdowns(request: ChangeRequest) -> ChangeRequest:
    return replace(request, unclean_shutdown_replicas=None)


def _elr_stays(
    original: Callable[..., _Eligible], state: PartitionState, request: ChangeRequest, target: _Assignment
) -> _Eligible:
    found = original(state, request, target)
    kept = tuple(broker for broker in state.elr if broker not in target.isr and broker in target.replicas)
    return found if found.elr or not kept else found._replace(elr=kept)


def _elr_stays_after_election(
    original: Original, request: ChangeRequest, eligible: _Eligible, target: _Assignment, isr: object, unclean: bool
) -> object:
    return eligible if isr == target.isr else original(request, eligible, target, isr, unclean)


def _always_clean(
    original: Original, state: ControllerState, broker: int, incarnation: str, previous: int, rack: str | None
) -> object:
    known = state.image.brokers.get(broker)
    return original(state, broker, incarnation, known.broker_epoch if known else previous, rack)


def _any_clean_epoch(
    original: Original, state: ControllerState, broker: int, incarnation: str, previous: int, rack: str | None
) -> object:
    known = state.image.brokers.get(broker)
    accepted = previous if known is None or previous == NO_EPOCH else known.broker_epoch
    return original(state, broker, incarnation, accepted, rack)


def _keep_file(original: Callable[[Storage], int], storage: Storage) -> int:
    data = storage.read_file(lifecycle.CLEAN_SHUTDOWN_FILE)
    epoch = original(storage)
    if data is not None:
        storage.write_file(lifecycle.CLEAN_SHUTDOWN_FILE, data)
    return epoch


def _elect_anyone(
    original: Original, election: object, candidates: Candidates, acceptable: Callable[[int], bool]
) -> object:
    for broker in (candidates.present_leader, *candidates.replicas):
        if broker != NO_LEADER and acceptable(broker):
            return Elected(broker, unclean=False)
    return original(election, candidates, acceptable)


def _election_recovers(
    original: Original, changes: dict[str, object], state: PartitionState, request: ChangeRequest, unclean: bool
) -> None:
    if "leader" in changes and changes["leader"] != NO_LEADER and not unclean:
        request = replace(request, target_leader_recovery_state=0)
    original(changes, state, request, unclean)


def _keeping(field: str) -> Callable[..., object]:
    return lambda original, state, record: replace(original(state, record), **{field: getattr(state, field)})


def _repeat_no_leader(original: Original, state: PartitionState, record: PartitionChangeRecord) -> object:
    changed = original(state, record)
    assert isinstance(changed, PartitionState)
    return replace(changed, leader_epoch=state.leader_epoch) if changed.leader == state.leader else changed


GUARDS: tuple[Mutant, ...] = (
    Mutant(
        name="stale-partition-epoch-accepted",
        guard="AlterPartition with an older partition epoch is refused with INVALID_UPDATE_VERSION (B18, KIP-497).",
        instead="It is applied to the present state.",
        expected=QUORUM,
        patches=(around(alter_partition, "validate", _any_partition_epoch),),
        focus=scripted(
            "A proposal is late, and a reassignment of its partition begins in between.",
            recipes.lose_fetch_responses(2, range(4), 3_000, 5_500),
            recipes.lose_fetch_responses(3, range(4), 5_300, END_MS),
            recipes.reorder_proposals(0, 6_000, 5_400, END_MS),
            recipes.lose_fetch_responses(2, range(4), 5_550, END_MS),
            Reassign(at_ms=5_750, duration_ms=END_MS - 5_750, topic=TOPIC, partition=0, replicas=(1, 2, 3)),
            brokers=4,
            send_every_ms=50,
        ),
    ),
    Mutant(
        name="deposed-leader-alters",
        guard="AlterPartition of an older leader epoch is refused with FENCED_LEADER_EPOCH (B19).",
        instead="It is applied as if the present leader had sent it.",
        expected=QUORUM,
        patches=(around(alter_partition, "validate", _any_leader),),
        focus=scripted(
            "A proposal is delayed until another broker leads and the proposer is unfenced.",
            recipes.lose_proposals(0, 3_000, 7_500),
            recipes.lose_fetch_responses(2, BROKERS, 3_000, 5_000),
            recipes.lose_heartbeats(0, 4_000, 6_900),
            recipes.cut_from_controller(0, 5_500, END_MS),
        ),
    ),
    Mutant(
        name="late-requests-accepted",
        guard="Heartbeats and proposals of an incarnation count once, in the order of sending (B19, B22).",
        instead="They count in the order of arrival, and duplicates count again.",
        expected=QUORUM,
        patches=(constant(SendingOrder, "takes", True),),
        focus=scripted(
            "A proposal is refused because its member is fenced, and a copy arrives after the member was unfenced.",
            recipes.lose_fetch_responses(2, BROKERS, 3_000, 8_200),
            recipes.lose_metadata(0, 6_000, END_MS),
            recipes.lose_heartbeats(2, 6_000, 9_600),
            recipes.duplicate_proposals(0, 4_000, 8_100, 9_600),
            recipes.lose_fetch_responses(2, BROKERS, 9_500, END_MS),
        ),
    ),
    Mutant(
        name="registration-of-a-former-incarnation-accepted",
        guard="A broker accepts the registration response of its present incarnation only (B20).",
        instead="It accepts any, and runs under the epoch of a former process.",
        expected=STORED,
        patches=(constant(BrokerLifecycleManager, "_is_to_this_incarnation", True),),
        focus=scripted(
            "A broker loses its log and restarts at once, and a copy of its former process's registration arrives.",
            recipes.kill(1, 3_000, 3_050),
            recipes.disturb((1,), recipes.CONTROLLER, "duplicate", 3_000, 6_000, only="registrations", delay_ms=4_000),
            recipes.fail_power(1, 6_600, 6_650),
        ),
    ),
    Mutant(
        name="stale-broker-epoch-accepted",
        guard="A proposed member whose broker epoch is not that of its registration is refused (KIP-903, B6).",
        instead="A log end of a former incarnation brings the broker into the ISR.",
        expected=STORED,
        patches=(constant(alter_partition, "has_registered_epoch", True),),
        focus=scripted(
            "A proposal is delayed until the member that it adds has lost its log and restarted.",
            recipes.lose_fetch_responses(2, BROKERS, 3_000, 5_600),
            recipes.lose_proposals(0, 5_500, 10_000),
            recipes.fail_power(2, 6_500, 9_100),
            recipes.lose_fetch_responses(2, BROKERS, 9_000, END_MS),
        ),
    ),
    Mutant(
        name="fenced-member-accepted",
        guard="A proposed member that is fenced or shuts down is refused with INELIGIBLE_REPLICA (B6).",
        instead="It enters the ISR.",
        expected=("ValidControllerState",),
        patches=(around(alter_partition, "_validate_isr", _propose_with_fenced),),
        focus=scripted(
            "A follower catches up, and its leader has not read that it is fenced.",
            recipes.lose_fetch_responses(2, BROKERS, 3_000, 9_200),
            recipes.cut_from_controller(0, 6_500, END_MS),
            recipes.lose_heartbeats(2, 6_600, END_MS),
        ),
    ),
    Mutant(
        name="elr-kept-at-min-isr",
        guard="The ELR is emptied when the ISR reaches min ISR (E14).",
        instead="Its members stay eligible while the high watermark moves on without them.",
        expected=("ValidControllerIsrAndElr", *QUORUM),
        patches=(
            around(partition_change, "_follow_isr", _elr_stays),
            around(partition_change, "_after_election", _elr_stays_after_election),
        ),
    ),
    Mutant(
        name="unclean-member-kept-in-elr",
        guard="A broker that registers after an unclean shutdown leaves every ELR (E20).",
        instead="It stays eligible, although it may have lost records.",
        expected=STORED,
        patches=(with_arguments(partition_change, "_follow_isr", request=_without_unclean_shutdowns),),
        focus=LOSSES,
    ),
    Mutant(
        name="unclean-restart-taken-as-clean",
        guard="A registration without the last broker epoch counts as unclean (E21).",
        instead="Every registration counts as clean.",
        expected=STORED,
        patches=(around(brokers, "register", _always_clean),),
        focus=LOSSES,
    ),
    Mutant(
        name="clean-shutdown-file-outlives-start",
        guard="The clean-shutdown file is deleted at the start, and is valid for the epoch in it (E22, M16).",
        instead="It makes all later incarnations look clean.",
        expected=STORED,
        patches=(
            around(brokers, "register", _any_clean_epoch),
            around(lifecycle_manager, "take_clean_shutdown_epoch", _keep_file),
        ),
        focus=PlanFocus(Bias(themes=("power after shutdown",)), why="Clean shutdowns, then lossy ones."),
    ),
    Mutant(
        name="clean-shutdown-without-flush",
        guard="The clean-shutdown file is written once all logs are flushed (E22).",
        instead="It is written while records are in the page cache only.",
        expected=STORED,
        patches=(around(Flusher, "flush_all", lambda original, self: self.write_checkpoint()),),
        focus=scripted(
            "The power fails after a clean shutdown.",
            Restart(at_ms=3_000, duration_ms=1_600, node=1),
            recipes.fail_power(1, 4_500, 4_600),
            min_isr=3,
        ),
    ),
    Mutant(
        name="fenced-replica-elected",
        guard="Only an active broker is elected (E17, E29).",
        instead="Any member of ISR or ELR is elected, fenced or not.",
        expected=("ValidControllerState",),
        patches=(with_arguments(partition_change, "elect", is_acceptable_leader=lambda _: lambda broker: True),),
    ),
    Mutant(
        name="elected-outside-isr-and-elr",
        guard="A clean election elects from the ISR, or from the ELR if the ISR is empty (E29).",
        instead="It elects any active replica.",
        expected=("RecoveryStateKept", "ValidControllerIsrAndElr", "EveryCommandSucceeds", *STORED),
        patches=(around(partition_change, "elect", _elect_anyone),),
    ),
    Mutant(
        name="fenced-broker-stays-in-isr",
        guard="A broker that is fenced or shuts down leaves every ISR (E13, E26).",
        instead="It stays, and its partitions keep it as leader.",
        expected=("ValidControllerState",),
        patches=(constant(brokers, "leave_in_sync_replicas", ()),),
    ),
    Mutant(
        name="leader-epoch-not-raised",
        guard="The leader epoch rises with every change of leader (E30).",
        instead="It stays as it is.",
        expected=("EpochsRise", "OneLeaderPerEpoch"),
        patches=(around(metadata_image, "replay_change", _keeping("leader_epoch")),),
    ),
    Mutant(
        name="leader-epoch-kept-by-the-same-leader",
        guard="The leader epoch rises where a record repeats the leader: a reassignment has removed a replica (E30).",
        instead="The leader epoch rises only where the leader changes.",
        expected=("EpochsRise",),
        patches=(around(metadata_image, "replay_change", _repeat_no_leader),),
        focus=MOVES,
    ),
    Mutant(
        name="partition-epoch-not-raised",
        guard="The partition epoch rises with every change (E18).",
        instead="It stays as it is.",
        expected=("EpochsRise",),
        patches=(around(metadata_image, "replay_change", _keeping("partition_epoch")),),
    ),
    Mutant(
        name="last-known-elr-forgotten",
        guard="Replicas that leave ISR and ELR uncleanly enter the last known ELR (E23, E27).",
        instead="The last known ELR stays empty.",
        expected=("MinIsrRecoveryQuorum",),
        patches=(
            around(
                partition_change, "_follow_isr", lambda original, *args: original(*args)._replace(last_known_elr=())
            ),
        ),
        focus=INCOMPLETE,
    ),
    Mutant(
        name="unclean-election-not-recovering",
        guard="An unclean election leaves the partition RECOVERING (C5, KIP-704).",
        instead="It looks like a clean one.",
        expected=("RecoveryStateKept",),
        patches=(with_arguments(partition_change, "_change_recovery_state", unclean=lambda _: False),),
        focus=INCOMPLETE,
    ),
    Mutant(
        name="recovery-state-forgotten",
        guard="A partition stays RECOVERING until its leader clears that, also through further elections (N13, C8).",
        instead="The next clean election clears it.",
        expected=("RecoveryStateKept",),
        patches=(around(partition_change, "_change_recovery_state", _election_recovers),),
        focus=scripted(
            "A leader that was elected uncleanly is fenced during its data-loss routine.",
            *(recipes.kill(broker, 3_000, 3_001) for broker in BROKERS),
            *(recipes.lose_heartbeats(broker, 6_500, 9_500) for broker in BROKERS),
            config={UNCLEAN_LEADER_HOOK: "experiments.scenarios.hooks:wait_10s"},
        ),
    ),
    Mutant(
        name="reassignment-completes-below-min-isr",
        guard="A reassignment completes when min ISR members of the final assignment are in sync (E32, M75).",
        instead="It completes as soon as the adding replicas are in sync.",
        expected=("ReassignmentKeepsMinIsr", *STORED),
        patches=(constant(partition_change, "_move_keeps_copies", True),),
        focus=scripted(
            "A partition moves away from the last member of its ISR.",
            recipes.kill(1, 3_000, END_MS),
            recipes.kill(2, 3_000, END_MS),
            Reassign(at_ms=6_500, duration_ms=END_MS - 6_500, topic=TOPIC, partition=0, replicas=(1, 2, 3)),
            brokers=4,
        ),
    ),
    Mutant(
        name="reassignment-leaves-one-copy",
        guard="A reassignment that removes replicas leaves two in sync, also at min ISR 1 (E32).",
        instead="It leaves min ISR.",
        expected=("ReassignmentKeepsMinIsr",),
        patches=(with_arguments(partition_change, "copies_of_completed", removing=lambda _: ()),),
        focus=scripted(
            "At min ISR 1 a partition moves from its only replica in sync to a new one and one that is down.",
            recipes.kill(1, 3_000, END_MS),
            Reassign(at_ms=6_500, duration_ms=END_MS - 6_500, topic=TOPIC, partition=0, replicas=(2, 1)),
            replicas=2,
            min_isr=1,
        ),
    ),
    Mutant(
        name="reassignment-shrinks-early",
        guard="A reassignment that adds fewer replicas than it removes awaits all of the final assignment (E32).",
        instead="It awaits those that it adds.",
        expected=("ReassignmentKeepsMinIsr",),
        patches=(with_arguments(partition_change, "awaited_replicas", final=lambda _: ()),),
        focus=scripted(
            "A partition of four replicas moves to three of them, of which one is down.",
            recipes.kill(3, 3_000, END_MS),
            Reassign(at_ms=6_500, duration_ms=END_MS - 6_500, topic=TOPIC, partition=0, replicas=(1, 2, 3)),
            brokers=4,
            replicas=4,
        ),
    ),
    Mutant(
        name="reassignment-completes-early",
        guard="A reassignment completes when all adding replicas are in sync (E32).",
        instead="It does not wait for them.",
        expected=("ReassignmentKeepsMinIsr", "ValidControllerIsrAndElr"),
        patches=(constant(partition_change, "_awaited_are_in_sync", True),),
        focus=MOVES,
    ),
    Mutant(
        name="reassignment-cancelled-below-min-isr",
        guard="A reassignment is cancelled only if min ISR original replicas are in sync (E33, E35).",
        instead="It is cancelled with whatever original replicas are in sync.",
        expected=("ReassignmentKeepsMinIsr",),
        patches=(constant(reassignments, "_may_lose_records", True),),
        focus=scripted(
            "A reassignment is cancelled while one original replica and one new replica are in sync.",
            recipes.kill(4, 3_000, END_MS),
            Reassign(at_ms=3_500, duration_ms=8_500, topic=TOPIC, partition=0, replicas=(0, 3, 4)),
            recipes.kill(1, 6_000, END_MS),
            recipes.kill(2, 6_000, END_MS),
            brokers=5,
        ),
    ),
)
