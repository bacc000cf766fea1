"""A process in which one module of the protocol is mutated, with limits of its processor time and memory.

`python -m experiments.hunt.mutants.generated.process MUTATION MODULE ARGUMENT...` runs a module with its arguments as
`python -m` does; MUTATION is a mutation as a JSON document. The source tree is not touched: a finder, asked before all
others, gives the changed code when the mutated module is imported. No bytecode of that module is read or written.

A mutation may make a loop endless. The kernel ends the process with SIGXCPU when its processor time is used up, which
does not depend on how busy the machine is; memory has a limit, too, since such a loop often fills a list.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from experiments.hunt.mutants.mutation import ROOT, Mutation, compiled, line_number_of, mutated_tree, path_of

MEMORY_BYTES = 3 * 2**30
"""The limit of a process's data segment; the hunt needs a tenth of it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), and what it wrote to standard output and error."""

    code: int
    output: str

    @property
    def ran_out_of_time(self) -> bool:
        """Whether it had used up its processor time."""
        return self.code == -signal.SIGXCPU


def run_mutated(mutation: Mutation, seconds: int, arguments: Sequence[str]) -> Ended:
    """Runs a module (the first argument) with its arguments under a mutation, for at most `seconds` of processor time.
    The working directory is the checkout. InputError if the mutation does not apply.
    """
    line_number_of(mutation)
    command = [sys.executable, "-m", __spec__.name, json.dumps(asdict(mutation)), str(seconds), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Ended(done.returncode, done.stdout)


class _MutatedModule(SourceFileLoader):
    """Finds the mutated module, and no other one, and loads it."""

    def __init__(self, mutation: Mutation) -> None:
        super().__init__(mutation.module, str(path_of(mutation.module)))
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(fullname, loader=self) if fullname == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        source = path_of(fullname).read_text(encoding="utf-8")
        return compiled(fullname, mutated_tree(self._mutation, source))


def _main(mutation: str, seconds: str, module: str, *arguments: str) -> None:
    limit = int(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    sys.meta_path.insert(0, _MutatedModule(Mutation(**json.loads(mutation))))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
