"""The content of a function, as a digest: equal digests, equal functions, in whatever process.

What counts: the byte code with its constants and names, so that neither comments nor line numbers do; default values;
and what the names of the function stand for: plain values, other functions (followed), modules outside the Python
installation (their files). Any other object counts by its pickled form, which may differ between two processes though
the object is the same: then trials are run again, never taken for others.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))


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
            yield _pickled(value)
    else:
        yield _pickled(value)


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


def _pickled(value: object) -> str:
    from ray import cloudpickle

    return _hash(cloudpickle.dumps(value))


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
