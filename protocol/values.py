"""Immutable values and enumerations that cost no more than other objects, since nodes use them for every input.

- The constructor of a frozen dataclass calls `object.__setattr__` for each field and takes six times as long as any
  other. `immutable` leaves immutability to the type checker, which refuses assignments to the fields as it does to
  those of a frozen dataclass.
- Python 3.11 keeps each member of an enumeration behind a descriptor written in Python, which takes ten times as long
  to read as another attribute of a class. `direct` puts the members themselves into the class, as later versions do.
- The hash of an enumeration's members is a function in Python of their name. `direct` gives those that are equal only
  to themselves the hash of other objects; like that of a text it differs between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")
Members = TypeVar("Members", bound=Enum)


@dataclass_transform(frozen_default=True)
def immutable(cls: type[Value]) -> type[Value]:
    """Makes the class a dataclass with slots, compared and hashed by value, whose fields no code may assign."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


def direct(enumeration: type[Members]) -> type[Members]:
    """Puts the members of an enumeration into its class, and hashes them by identity where they are compared by it."""
    for name, member in enumeration.__members__.items():
        type.__setattr__(enumeration, name, member)
    if enumeration.__hash__ is Enum.__hash__ and enumeration.__eq__ is object.__eq__:
        type.__setattr__(enumeration, "__hash__", object.__hash__)
    return enumeration
