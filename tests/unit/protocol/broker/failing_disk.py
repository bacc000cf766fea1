"""A disk whose calls fail while a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from experiments.engines.sim.disk import SimLog, SimStorage
from protocol.errors import StorageError


def _checked(method: Callable[..., Any]) -> Any:
    """The method, which raises what `failing` of the disk has under its name."""

    @wraps(method)
    def checked(self: FailingLog | FailingStorage, *arguments: Any) -> Any:
        disk = self.disk if isinstance(self, FailingLog) else self
        if method.__name__ in disk.failing:
            raise disk.failing[method.__name__]
        return method(self, *arguments)

    return checked


class FailingLog(SimLog):
    """A log of a `FailingStorage`."""

    __slots__ = ("disk",)

    def __init__(self, disk: FailingStorage) -> None:
        super().__init__()
        self.disk = disk

    append = _checked(SimLog.append)
    read = _checked(SimLog.read)
    flush = _checked(SimLog.flush)
    segments = _checked(SimLog.segments)
    write_snapshot = _checked(SimLog.write_snapshot)


class BrokenLog:
    """A log of which nothing can be read."""

    def __getattr__(self, name: str) -> object:
        raise StorageError("the disk has failed")


class FailingStorage(SimStorage):
    """A disk whose calls named in `failing` raise the error."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, StorageError] = {}
        self.failing_logs: dict[str, FailingLog] = {}

    @_checked
    def open_log(self, name: str) -> FailingLog:
        return self.failing_logs.setdefault(name, FailingLog(self))

    def log_names(self) -> Sequence[str]:
        return sorted(self.failing_logs)

    @_checked
    def delete_log(self, name: str) -> None:
        self.failing_logs.pop(name, None)

    write_file = _checked(SimStorage.write_file)
    delete_file = _checked(SimStorage.delete_file)
