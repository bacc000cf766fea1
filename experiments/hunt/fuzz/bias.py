"""Parts of a plan that are not drawn: a theme fixes the sizes and configs that it needs (`themes.py`), a mutant the
faults that reveal it (`experiments/hunt/mutants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import ConfigDict

from experiments.support.fields import ConfigSetting
from protocol.features import Generation


@dataclass(frozen=True, slots=True)
class Bias:
    """What is None or an empty mapping is drawn. `topic` and `config` replace single drawn settings of the topic and of
    the cluster; `sessions` are those of a controller with the store; `weights` limits faults to its kinds; `themes` are
    the names of the plan's themes (empty: none). Without `within_tolerance` disks lose what the faults ask for.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    generation: Generation | None = None
    controllers: int | None = None
    brokers: int | None = None
    replicas: int | None = None
    min_isr: int | None = None
    partitions: int | None = None
    sessions: int | None = None
    topic: Mapping[str, ConfigSetting] = field(default_factory=dict)
    config: Mapping[str, ConfigSetting] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    themes: tuple[str, ...] | None = None
    within_tolerance: bool = True

    def or_else(self, other: Bias) -> Bias:
        """This bias, with the other's sizes and configs where this one has none."""
        drawn = ("generation", "controllers", "brokers", "replicas", "min_isr", "partitions", "sessions")
        fixed = {name: getattr(self, name) or getattr(other, name) for name in drawn}
        return replace(self, **fixed, topic={**other.topic, **self.topic}, config={**other.config, **self.config})


NO_BIAS = Bias()
