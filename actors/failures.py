"""Ray's errors of calls to an actor that does not run: which there are, and what an operator reads of them."""

from __future__ import annotations

from ray.exceptions import ActorUnschedulableError, RayActorError

from protocol.errors import StorageError

ACTOR_GONE = (RayActorError, ActorUnschedulableError)
"""The errors of a call to an actor that has ended, or whose Ray node is lost."""
_STORAGE_ERRORS = {StorageError.__name__, *(kind.__name__ for kind in StorageError.__subclasses__())}


def is_creation_failure(error: Exception) -> bool:
    """Whether the actor's own code has failed in its constructor; otherwise its Ray node or its process was lost."""
    return isinstance(error, RayActorError) and error.actor_init_failed


def creation_failure(text: str) -> str:
    """Why an actor could not be created, from Ray's error text: only the last line where a StorageError is the reason,
    which an operator can act on, otherwise the whole text.
    """
    last = text.strip().splitlines()[-1]
    kind = last.partition(":")[0].rpartition(".")[2]
    return last.removeprefix(f"{StorageError.__module__}.") if kind in _STORAGE_ERRORS else text
