"""Where the files of a study are: a folder of a file system, or a prefix of an object store (any fsspec URL).

A path, or a `file://` URL, is a folder: files are renamed into place. Any other URL (`s3://bucket/prefix`, `gs://...`)
goes to the fsspec file system of its protocol, with the options of that file system (docs/scaling.md); object stores
make an object visible when its upload is complete.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.support.atomic import write_bytes
from experiments.support.errors import InputError

Location = str | Path
"""A folder, or an fsspec URL."""


class StorageFailed(RuntimeError):
    """A file could not be read or written; the message is one line that names it and the reason."""


class Store(ABC):
    """The files of one study, by relative names with `/`; small, since it is sent to workers. Every method raises
    StorageFailed if the storage refuses or does not answer."""

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if there is none."""
        with _refusals(self.place(name)), suppress(FileNotFoundError):
            return self._read(name)
        return None

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Writes a file, which appears whole or not at all, and the folder that it is in."""
        with _refusals(self.place(name)):
            self._write(name, content)

    def names(self, folder: str = "") -> list[str]:
        """The names of the files and folders in a folder, sorted; none if it does not exist."""
        with _refusals(self.place(folder)), suppress(FileNotFoundError):
            return sorted(self._names(folder))
        return []

    def remove(self, name: str) -> None:
        """Removes a file or folder, if it exists."""
        with _refusals(self.place(name)), suppress(FileNotFoundError):
            self._remove(name)

    @abstractmethod
    def place(self, name: str = "") -> str:
        """The path or URL of a file, as messages name it."""

    @abstractmethod
    def _read(self, name: str) -> bytes: ...

    @abstractmethod
    def _write(self, name: str, content: bytes | memoryview) -> None: ...

    @abstractmethod
    def _names(self, folder: str) -> Iterable[str]: ...

    @abstractmethod
    def _remove(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Folder(Store):
    """A folder of a file system that this process can reach by its path."""

    root: Path

    def place(self, name: str = "") -> str:
        return str(self.root / name)

    def _read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def _write(self, name: str, content: bytes | memoryview) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)

    def _names(self, folder: str) -> Iterable[str]:
        return [path.name for path in (self.root / folder).iterdir()]

    def _remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@dataclass(frozen=True, slots=True)
class ObjectStore(Store):
    """What fsspec reaches by a URL without a trailing slash."""

    url: str

    def place(self, name: str = "") -> str:
        return f"{self.url}/{name}" if name else self.url

    def _read(self, name: str) -> bytes:
        return bytes(self._system.cat_file(self.place(name)))

    def _write(self, name: str, content: bytes | memoryview) -> None:
        self._system.pipe_file(self.place(name), bytes(content))

    def _names(self, folder: str) -> Iterable[str]:
        system = self._system
        system.invalidate_cache()
        return {path.rstrip("/").rpartition("/")[2] for path in system.ls(self.place(folder), detail=False)} - {""}

    def _remove(self, name: str) -> None:
        self._system.rm(self.place(name), recursive=True)

    def download(self, name: str, path: Path) -> None:
        """Copies a file to a local path, in pieces."""
        with _refusals(self.place(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._system.get_file(self.place(name), str(path))

    def upload(self, path: Path, name: str) -> None:
        """Copies a local file into the store, in pieces."""
        with _refusals(self.place(name)):
            self._system.put_file(str(path), self.place(name))

    def below(self, *folders: str) -> list[str]:
        """The names of all files below these folders."""
        with _refusals(self.url):
            system, root = self._reached()
            found = [path for folder in folders for path in system.find(f"{root}/{folder}")]
            return sorted(path.removeprefix(f"{root}/") for path in found)

    def _reached(self) -> tuple[Any, str]:
        """The file system, of which fsspec keeps one instance per process, and the path of the prefix in it."""
        import fsspec

        system, root = fsspec.core.url_to_fs(self.url)
        return system, str(root)

    @property
    def _system(self) -> Any:
        return self._reached()[0]


def store_at(out: Location) -> Store:
    """The store of a path or URL. Raises InputError for a URL that no installed file system serves."""
    if isinstance(out, Path) or "://" not in out:
        return Folder(Path(out))
    protocol, _, rest = out.partition("://")
    if protocol == "file":
        return Folder(Path(rest))
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        allowed = "a folder, or a URL of an installed fsspec file system (s3://...: pip install 'isray[s3]')"
        raise InputError("--out", "", f"{out} ({error})", allowed) from error
    return ObjectStore(out.rstrip("/"))


@contextmanager
def _refusals(place: str) -> Iterator[None]:
    """Turns any error of a file system into one line. Each fsspec implementation raises errors of its own."""
    try:
        yield
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
        raise StorageFailed(f"{place}: {' '.join(reason.split())}") from error


def spark_path(store: Store) -> str:
    """The root of a store as Spark and Hadoop name it: Hadoop's S3 is `s3a://`."""
    if isinstance(store, Folder):
        return f"file://{store.root.resolve()}"
    assert isinstance(store, ObjectStore)
    return store.url.replace("s3://", "s3a://", 1)
