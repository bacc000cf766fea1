"""What a trial's result depends on, as digests: equal digests, equal trials.

A trial is a pure function of its code, its cell's parameters and its seed (`trial_seed`). The digest of a cell covers
all but the trial's number, so that trials are found again by content: when cells are added, removed or reordered, or
more trials are wanted, those on disk count; after a change of the code or the study's seed they do not.

The code of a trial is the source of the module that defines it and of everything that it imports, directly or not,
from the same project (static imports, read from the source). A trial that is no plain function of a module (a bound
object, a closure) also counts with its pickled form, or with the digest that is its attribute `content`. The source of
the simulated trial counts always, since trials of other modules call it.

The content of a script's function counts by its byte code with its constants and names, so that neither comments nor
line numbers do; by its default values; and by what its names stand for: plain values, other functions (followed),
modules outside the Python installation (their files). Any other object counts by its pickled form, which may differ
between two processes though the object is the same: then trials are run again, never taken for others.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.trials.batch import Trial
from experiments.support.build import PACKAGES_FOLDER

PROJECT = ("protocol", "actors", "experiments")
PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))


def cell_digest(parameters: CellParameters, study_seed: int, pairing: bool, code: str) -> str:
    """16 hexadecimal digits for a cell: the name of its trials in files and tables."""
    text = f"{code}\n{study_seed}\n{pairing}\n{parameters.model_dump_json()}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def cell_digests(study: StudyPlan, code: str) -> tuple[str, ...]:
    """The digests of the study's cells, in their order."""
    return tuple(cell_digest(cell.parameters, study.seed, study.pairing, code) for cell in study.cells)


def trial_code_digest(trial: Trial) -> str:
    """Digest of all source that a trial's result depends on, 32 hexadecimal digits."""
    module, name = getattr(trial, "__module__", type(trial).__module__), getattr(trial, "__qualname__", "")
    parts = [f"{module}:{name}\n".encode()]
    parts += [path.encode() + b"\0" + content + b"\0" for path, content in _sources(module)]
    own = getattr(trial, "content", None)
    if own is not None:
        parts.append(str(own).encode())
    elif not inspect.isfunction(trial) or "<" in name:
        parts.append(_pickled(trial))
    return _hash(b"".join(parts))


@lru_cache(maxsize=8)
def _sources(module: str) -> tuple[tuple[str, bytes], ...]:
    """Name and source of each file that the module's code depends on, sorted by name; always with those of a trial."""
    roots = dict.fromkeys(PROJECT, PACKAGES_FOLDER)
    own = getattr(sys.modules.get(module), "__file__", None)
    if own and module.partition(".")[0] not in PROJECT:
        above = module.count(".") + (Path(own).name == "__init__.py")
        roots[module.partition(".")[0]] = Path(own).resolve().parents[above]
    found: dict[str, bytes] = {}
    waiting, seen = [module, "experiments.studies.trials.trial"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        root = roots.get(name.partition(".")[0])
        path = Path(own) if own and name == module == "__main__" else root and _file_of(name, root)
        if path:
            found[name] = path.read_bytes()
            waiting += [name.rpartition(".")[0], *_imports(name, found[name], path.name == "__init__.py")]
    return tuple(sorted(found.items()))


def _file_of(module: str, root: Path) -> Path | None:
    """The source file of a module; None if there is none of that name (the last part may be a function or class)."""
    path = root.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if module and candidate.is_file()), None)


@cache
def _imports(module: str, source: bytes, is_package: bool) -> tuple[str, ...]:
    """Dotted names that a module imports, including those of what it takes from them; not for types alone."""
    found: list[str] = []
    for node in _statements(ast.parse(source), has_types=b"TYPE_CHECKING" in source):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            found += [base, *(f"{base}.{name.name}" for name in node.names)]
    return tuple(found)


def _statements(tree: ast.Module, *, has_types: bool) -> Iterator[ast.AST]:
    """The statements of a module, those within others too, but not those for types alone, which it may have
    (`has_types`). Expressions, which are most of a syntax tree, are not visited: no import is in one."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if has_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def content_digest(*functions: Callable[..., object]) -> str:
    """32 hexadecimal digits for these functions, in this order."""
    seen: set[int] = set()
    parts = (part for function in functions for part in _object("", function, seen))
    return _hash(b"".join(part.encode() + b"\0" for part in parts))


def _object(name: str, value: object, seen: set[int]) -> Iterator[str]:
    yield name
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, ModuleType):
        yield value.__name__
        path = getattr(value, "__file__", None)
        if path is not None and not _belongs_to_installation(path):
            yield _hash(Path(path).read_bytes())
    elif isinstance(value, CodeType):
        yield from _code(value, seen)
    elif isinstance(value, set | frozenset):
        yield from (text for item in sorted(value, key=repr) for text in _object("item", item, seen))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _object(type(value).__name__, item, seen))
    elif isinstance(value, Mapping):
        yield from (text for key, item in value.items() for text in _object(repr(key), item, seen))
    elif isinstance(value, functools.partial):
        yield from _object("partial", (value.func, value.args, value.keywords), seen)
    elif isinstance(value, FunctionType):
        yield from _function(value, seen)
    elif inspect.isbuiltin(value) or isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, type) and value.__module__ == "__main__":
            yield _hash(_pickled(value))
    else:
        yield _hash(_pickled(value))


def _function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"{function.__module__}.{function.__qualname__}"
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _code(function.__code__, seen)
    yield from _object("defaults", (function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        yield from _object("closure", cell.cell_contents, seen)
    for name in _names(function.__code__):
        if name in function.__globals__ and not _belongs_to_installation(inspect.getfile(function)):
            yield from _object(name, function.__globals__[name], seen)


def _code(code: CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    yield from _object("constants", code.co_consts, seen)


def _names(code: CodeType) -> Iterator[str]:
    """The global names of a function, those of functions within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _belongs_to_installation(path: str) -> bool:
    return any(Path(path).is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))


def _pickled(value: object) -> bytes:
    from ray import cloudpickle

    return bytes(cloudpickle.dumps(value))


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
