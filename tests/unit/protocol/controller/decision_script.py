"""Commands of transcripts about the decision on a partition change alone: a state, the rules, and what is decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.metadata.partition import PartitionState, replay_change
from tests.unit.protocol.partition_words import TUPLES, said_of, said_of_change
from tests.unit.protocol.transcripts import Command, Script, numbers

KIP_497 = {"elr_enabled": False}
KIP_966_ELR = {"elr_enabled": True, "use_last_known_leader": True}
KIP_966 = {"elr_enabled": True, "track_last_known_leader": True}
KIP_966_UNTRACKED = {"elr_enabled": True}
RULES = {"kip-497": KIP_497, "kip-966-elr": KIP_966_ELR, "kip-966": KIP_966, "untracked": KIP_966_UNTRACKED}
TARGETS = {"isr": "target_isr", "replicas": "target_replicas", "unclean": "unclean_shutdown_replicas"}


class DecisionScript(Script):
    """A partition with the replicas 1, 2, 3, led by the first member of its ISR, at the epochs 5/9."""

    def __init__(self) -> None:
        self.rules = KIP_966
        self.state = PartitionState((1, 2, 3), ())
        self.trying = False

    def do_rules(self, command: Command) -> None:
        self.rules = RULES[command.next()]

    def do_state(self, command: Command) -> None:
        """`state 1,2 elr=3 leader=-`: the ISR, and other fields."""
        isr = numbers(command.next())
        leader = command.get("leader", str(isr[0]) if isr else "-")
        state = PartitionState(
            numbers(command.get("replicas", "1-3")),
            isr,
            leader=-1 if leader == "-" else int(leader),
            leader_epoch=5,
            partition_epoch=9,
            last_known_leader=command.number("last_known_leader", -1),
            leader_recovery_state=command.number("recovering", 0),  # type: ignore[arg-type]
        )
        names = {**{name: name for name in ("elr", "last_known_elr")}, "adding": TUPLES["adding"]}
        names["removing"] = TUPLES["removing"]
        lists: dict[str, Any] = {names[name]: numbers(value) for name, value in command.named().items()}
        self.state = replace(state, **lists)

    def do_try(self, command: Command) -> Iterator[str]:
        """`try decide ...`: the record, and the state stays."""
        self.trying = True
        yield from self.run(" ".join(command.words()))
        self.trying = False

    def do_decide(self, command: Command) -> Iterator[str]:
        """`decide alive=1,2 min_isr=2 isr=1 election=unclean`: the state after what is decided, or that nothing is."""
        alive = numbers(command.get("alive", "1-3"))
        election = Election[command.get("election", "online").upper()]
        min_isr, recovering = command.number("min_isr", 2), command.number("recovering", -1)
        targets = {TARGETS[name]: numbers(value) for name, value in command.named().items()}
        request = ChangeRequest(
            min_isr=min_isr,
            is_acceptable_leader=frozenset(alive).__contains__,
            election=election,
            target_leader_recovery_state=None if recovering < 0 else recovering,
            **self.rules,  # type: ignore[arg-type]
            **targets,  # type: ignore[arg-type]
        )
        record = decide("topic", 0, self.state, request)
        if record is None:
            yield "nothing"
        elif self.trying:
            yield said_of_change(record)
        else:
            self.state = replay_change(self.state, record)
            yield said_of(self.state, home=(1, 2, 3))
