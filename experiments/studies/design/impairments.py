"""Named causes: what keeps brokers from working without a crash, and power events of several causes.

An *impairment* is a time in which a broker runs and does not do its part: it is `isolated` (its messages are lost),
`paused` (its process takes no input, and loses none), or has a `slow_disk` (nothing is appended). A study gives one
cause or a list, `isolated: [{name: switch, of: rack, ...}, {name: firewall, ...}]`; names tell causes apart in a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, Final, Literal, cast, get_args

from pydantic import Field

from experiments.studies.design.distribution import DISTRIBUTION, Distribution, RandomTime
from experiments.support.fields import AsTuple, Finite, Notation, WrittenModel

MOST_PER_YEAR = 100_000.0
"""The highest rate of shared events."""

Domain = Literal["broker", "rack", "cluster"]
Peers = Literal["others", "brokers", "controllers", "clients", "all"]
"""From whom a broker is cut off; `others`: the other brokers and the controllers."""
Direction = Literal["both", "in", "out"]
"""What is lost: all messages, those to the broker, those of the broker."""
ImpairmentKind = Literal[
    "isolated", "isolated-in", "isolated-out",
    "isolated-brokers", "isolated-brokers-in", "isolated-brokers-out",
    "isolated-controllers", "isolated-controllers-in", "isolated-controllers-out",
    "isolated-clients", "isolated-clients-in", "isolated-clients-out",
    "isolated-all", "isolated-all-in", "isolated-all-out",
    "paused", "slow-disk",
]  # fmt: skip
"""The kinds of impairments in records and traces: an isolation names its peers and direction unless others and both."""
IMPAIRMENTS: Final[tuple[ImpairmentKind, ...]] = get_args(ImpairmentKind)
PAUSED: Final = "paused"
SLOW_DISK: Final = "slow-disk"


def isolation(peers: Peers, direction: Direction) -> ImpairmentKind:
    """The kind of an isolation."""
    parts = ["isolated", *([peers] if peers != "others" else []), *([direction] if direction != "both" else [])]
    return cast(ImpairmentKind, "-".join(parts))


ISOLATIONS: Final[Mapping[str, tuple[Peers, Direction]]] = {
    isolation(peers, direction): (peers, direction)
    for peers, direction in product(get_args(Peers), get_args(Direction))
}
"""From whom and in which direction, by kind."""
assert {*ISOLATIONS, PAUSED, SLOW_DISK} == set(IMPAIRMENTS)
_NAMES = Notation(form="a letter, then letters, digits, spaces, '_' and '-', 40 characters at most")
CauseName = Annotated[str, _NAMES, Field(pattern="^[A-Za-z][A-Za-z0-9 _-]*$", max_length=40)]


class Impairment(WrittenModel):
    """Events of a cause, a Poisson process per domain, each of which impairs all brokers of the domain for `duration`.
    `name`: by default that of the kind."""

    name: CauseName = ""
    of: Domain = "broker"
    per_year: Finite = Field(gt=0, le=MOST_PER_YEAR, description="events per year and broker, rack or cluster")
    duration: RandomTime


class Isolation(Impairment):
    """All messages between the brokers of a domain and `from` are lost, or those in one `direction`. Brokers of one
    domain reach each other."""

    name: CauseName = "isolation"
    peers: Peers = Field("others", alias="from")
    direction: Direction = "both"

    @property
    def kind(self) -> ImpairmentKind:
        """The kind of the impairments."""
        return isolation(self.peers, self.direction)


class Pause(Impairment):
    """The processes of a domain take no input, as in a collection of garbage or on a host that stalls."""

    name: CauseName = "pause"

    @property
    def kind(self) -> ImpairmentKind:
        """The kind of the impairments."""
        return PAUSED


class SlowDisk(Impairment):
    """What is to be appended to the logs of a broker waits until the end; all else goes on."""

    name: CauseName = "slow disk"

    @property
    def kind(self) -> ImpairmentKind:
        """The kind of the impairments."""
        return SLOW_DISK


AnyImpairment = Isolation | Pause | SlowDisk


class PowerCause(WrittenModel):
    """Events that end all brokers of a rack or of the cluster at once, unclean. `loss`: the probability that a broker
    loses its unflushed tail, `down`: one down time for all; by default those of the parameters."""

    name: CauseName = "power"
    of: Literal["rack", "cluster"] = "rack"
    per_year: Finite = Field(gt=0, le=MOST_PER_YEAR, description="events per year and rack or cluster")
    down: Annotated[Distribution | None, DISTRIBUTION] = None
    loss: Finite | None = Field(None, ge=0, le=1)


def listed_or_none(form: str) -> Notation:
    """The notation of a mapping, of a list of mappings, or `none`, which is the empty list. `form`: of a mapping."""

    def read(value: object) -> object:
        items = [] if value == "none" else [value] if isinstance(value, Mapping | WrittenModel) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping | WrittenModel) for item in items):
            raise ValueError(f"found {value!r}; allowed: {form}, or a list of such mappings")
        return tuple(items)

    def write(value: object) -> str:
        return "; ".join(item.words() for item in cast(Iterable[WrittenModel], value)) or "none"

    return Notation(read, write, f"{form}, or a list of such mappings; or none")


_OF = "name: NAME, of: broker | rack | cluster"
_WHEN = "per_year: NUMBER, duration: DURATION or distribution"
_ISOLATED = f"{{{_OF}, from: others | brokers | controllers | clients | all, direction: both | in | out, {_WHEN}}}"
_POWER = "{name: NAME, of: rack | cluster, per_year: NUMBER, down: DURATION or distribution, loss: PROBABILITY}"
Isolations = Annotated[tuple[Isolation, ...], AsTuple, listed_or_none(_ISOLATED)]
Pauses = Annotated[tuple[Pause, ...], AsTuple, listed_or_none(f"{{{_OF}, {_WHEN}}}")]
SlowDisks = Annotated[tuple[SlowDisk, ...], AsTuple, listed_or_none(f"{{{_OF}, {_WHEN}}}")]
PowerCauses = Annotated[tuple[PowerCause, ...], AsTuple, listed_or_none(_POWER)]
