"""All kinds of faults by name; a module has the kinds of one subject.

The order of `FAULT_KINDS` is part of what a seed of `isray fuzz` means: the swarm samples kinds from it. A new kind
therefore goes to the end of its module with `in_swarm = False`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from experiments.faults.kinds import administration, links, machines, operations, processes
from experiments.faults.schema import Fault

FAULT_KINDS: dict[str, type[Fault]] = {
    model.model_fields["kind"].default: model
    for model in (*processes.KINDS, *links.KINDS, *machines.KINDS, *administration.KINDS, *operations.KINDS)
}

if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = Annotated[reduce(or_, FAULT_KINDS.values()), Field(discriminator="kind")]
"""A fault of any kind, as a field of a model; `kind` says which."""
