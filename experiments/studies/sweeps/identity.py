"""What a trial's result depends on, as digests: equal digests, equal trials.

A trial is a pure function of its code, its cell's parameters and its seed (`trial_seed`). The digest of a cell covers
all but the trial's number, so that trials are found again by content: when cells are added, removed or reordered, or
more trials are wanted, those on disk count; after a change of the code or the study's seed they do not.

The code of a trial is the source of the module that defines it and of everything that it imports, directly or not,
from the same project (static imports, read from the source). A trial that is no plain function of a module (a bound
object, a closure) also counts with its pickled form, or with the digest that is its attribute `content`. The source of
the simulated trial counts always, since trials of other modules call it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from functools import cache, lru_cache
from pathlib import Path

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.trials.batch import Trial
from experiments.support.build import PACKAGES_FOLDER

PROJECT = ("protocol", "actors", "experiments")


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
    digest = hashlib.blake2b(f"{module}:{name}\n".encode(), digest_size=16)
    for path, content in _sources(module):
        digest.update(path.encode() + b"\0" + content + b"\0")
    own = getattr(trial, "content", None)
    if own is not None:
        digest.update(str(own).encode())
    elif not inspect.isfunction(trial) or "<" in name:
        from ray import cloudpickle

        digest.update(cloudpickle.dumps(trial))
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _sources(module: str) -> tuple[tuple[str, bytes], ...]:
    """Name and source of each file that the module's code depends on, sorted by name; always with those of a trial."""
    roots = dict.fromkeys(PROJECT, PACKAGES_FOLDER)
    own = getattr(sys.modules.get(module), "__file__", None)
    if own and module.partition(".")[0] not in PROJECT:
        above = module.count(".") + (Path(own).name == "__init__.py")
        roots[module.partition(".")[0]] = Path(own).resolve().parents[above]
    found: dict[str, bytes] = {}
    waiting = [module, "experiments.studies.trials.trial"]
    while waiting:
        name = waiting.pop()
        root = roots.get(name.partition(".")[0])
        path = Path(own) if own and name == module == "__main__" else root and _file_of(name, root)
        if name not in found and path:
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
    tree = ast.parse(source)
    for_types = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    skipped = {id(inner) for node in for_types for inner in ast.walk(node)}
    for node in (node for node in ast.walk(tree) if id(node) not in skipped):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            found += [base, *(f"{base}.{name.name}" for name in node.names)]
    return tuple(found)
