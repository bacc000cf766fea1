"""What every message is: a frozen pydantic model with Kafka's field names in snake_case, and nothing unknown in it.

Messages and records are values. They are built once, shared between nodes by reference in the simulator and carried as
bytes between processes by the codec (`codec.py`), which finds a model's wire name in the registry that is kept here.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A frozen pydantic value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(Frozen):
    """Base of everything that travels between nodes or lies in the metadata log; every concrete subclass is registered.

    `CONTROL` marks traffic that must not queue behind data (heartbeats, registration, elections). `RENEWAL` marks a
    message that only renews what its receiver already knows, such as a heartbeat of an unfenced broker (see
    `contract.SetTimer`).
    """

    CONTROL: ClassVar[bool] = False
    RENEWAL: ClassVar[bool] = False
    REGISTRY: ClassVar[dict[str, type[Message]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__name__ in Message.REGISTRY:
            raise TypeError(f"two message types are called {cls.__name__}")
        Message.REGISTRY[cls.__name__] = cls
