"""The election of the controller among the brokers (A1, A4, A32, A35, M34).

Every broker that starts, and every broker whose watch on `/controller` fires, runs `elect`. The watch is set by the
read that comes before the race, so that the loss of a controller cannot be missed: a watch that is set after the race
misses a winner that dies in between.

Departure: the transaction that creates `/controller` also increments `/controller_epoch`, on condition that it is still
what this broker has read. So every controller has an epoch of its own from the beginning, and the version of
`/controller_epoch` fences the writes of all earlier ones (A35).
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import BrokerId, Epoch
from protocol.messages.store import Check, Create, Exists, GetData, SetData, StoreError
from protocol.v3.controller.procedure import Alert, Pause, Procedure, error_of, read, write
from protocol.v3.store import paths
from protocol.v3.store.records import ControllerNode, DamagedNodeError, decode_epoch, encode_epoch

DAMAGE_RETRY_MS = 5_000


@dataclass(frozen=True, slots=True)
class Elected:
    """This broker is controller, with this epoch; `fence` is what each of its writes has to check."""

    epoch: Epoch
    fence: Check


@dataclass(frozen=True, slots=True)
class Lost:
    """Another broker is controller, or -1 if that is not known; the watch on `/controller` is set."""

    controller: BrokerId = -1


def create_roots() -> Procedure[None]:
    """Creates the nodes that always exist, for a store that is new. Any broker may do it at any time."""
    for path in paths.PERSISTENT:
        yield from write(((Create(path=path),),), is_fenced=False)
    yield from write(((Create(path=paths.CONTROLLER_EPOCH, data=encode_epoch(0)),),), is_fenced=False)


def elect(broker: BrokerId, broker_epoch: int) -> Procedure[Elected | Lost]:
    """Races for `/controller` (S1 D.1, D.2), again every `DAMAGE_RETRY_MS` while a node of the election is damaged. A
    broker that is controller already, because the response to its transaction was lost, goes on as such.
    """
    reported = ""
    while True:
        try:
            return (yield from _race(broker, broker_epoch))
        except DamagedNodeError as damage:
            if str(damage) != reported:
                reported = str(damage)
                yield Alert(reported)
        yield Pause(DAMAGE_RETRY_MS)


def _race(broker: BrokerId, broker_epoch: int) -> Procedure[Elected | Lost]:
    own = ControllerNode(brokerid=broker, broker_epoch=broker_epoch)
    (present,) = yield from read((Exists(path=paths.CONTROLLER, watch=True),))
    if present.exists:
        return (yield from _follow(own))
    epoch, version = yield from _read_epoch()
    epoch += 1
    create = Create(path=paths.CONTROLLER, data=own.encode(), ephemeral=True)
    count = SetData(path=paths.CONTROLLER_EPOCH, data=encode_epoch(epoch), version=version)
    (unit,) = yield from write(((create, count),), is_fenced=False)
    if error_of(unit) is StoreError.NONE:
        return Elected(epoch, Check(path=paths.CONTROLLER_EPOCH, version=unit[1].version))
    return (yield from _follow(own))


def _read_epoch() -> Procedure[tuple[Epoch, int]]:
    (found,) = yield from read((GetData(path=paths.CONTROLLER_EPOCH),))
    return decode_epoch(paths.CONTROLLER_EPOCH, found.data), found.version


def _follow(own: ControllerNode) -> Procedure[Elected | Lost]:
    """Who is controller. The epoch of a controller that is in place changes only with the controller."""
    (found,) = yield from read((GetData(path=paths.CONTROLLER, watch=True),))
    if found.error is StoreError.NO_NODE:
        return Lost()
    node = ControllerNode.decode(paths.CONTROLLER, found.data)
    if node != own:
        return Lost(node.brokerid)
    epoch, version = yield from _read_epoch()
    return Elected(epoch, Check(path=paths.CONTROLLER_EPOCH, version=version))
