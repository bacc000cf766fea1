"""What of a plan is not left to the dice.

A bias says where the swarm is to look: `isray fuzz` has none, a theme asks for the sizes and configs that it needs
(`themes.py`), and a mutant for the faults that bring it out (`experiments/hunt/mutants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from experiments.support.fields import ConfigSetting
from protocol.config import Generation


@dataclass(frozen=True, slots=True)
class Bias:
    """None, or an empty mapping: drawn. `topic` and `config` take the place of single drawn settings of the topic and
    of the cluster; `weights` are those of the kinds of faults, of which then no others are drawn; `themes` are names,
    none of which there may be. Unless plans are to stay `within_tolerance`, crashes take what they ask for.
    """

    generation: Generation | None = None
    controllers: int | None = None
    brokers: int | None = None
    replicas: int | None = None
    min_isr: int | None = None
    partitions: int | None = None
    topic: Mapping[str, ConfigSetting] = field(default_factory=dict)
    config: Mapping[str, ConfigSetting] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    themes: tuple[str, ...] | None = None
    within_tolerance: bool = True

    def or_else(self, other: Bias) -> Bias:
        """This bias, and the other's sizes and configs where this one says nothing."""
        return replace(
            self,
            generation=self.generation or other.generation,
            controllers=self.controllers or other.controllers,
            brokers=self.brokers or other.brokers,
            replicas=self.replicas or other.replicas,
            min_isr=self.min_isr or other.min_isr,
            partitions=self.partitions or other.partitions,
            topic={**other.topic, **self.topic},
            config={**other.config, **self.config},
        )


NO_BIAS = Bias()
