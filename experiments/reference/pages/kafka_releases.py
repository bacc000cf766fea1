"""What Kafka's releases run and changed, from `protocol.kafka_release` and `protocol.kafka_rules`."""

from __future__ import annotations

from experiments.conformance.departures import DEPARTURES
from experiments.reference.markdown import code, sections, table
from protocol.kafka_release import GENERATION_RELEASES, RELEASE_CHANGES, KafkaRelease

TITLE = "Kafka's releases"
SUMMARY = (
    "which release runs which generation, the values of `kafka_release`, the rules that changed between them, and "
    "where isray departs from all of them"
)


def page() -> str:
    changes = ((code(it.name), it.first, it.before, it.since, it.source) for it in RELEASE_CHANGES)
    has = (
        (code(release.value), release.exact, *("yes" if release.has(it) else "no" for it in RELEASE_CHANGES))
        for release in KafkaRelease
    )
    departed = ((code(it.name), it.rule.kafka, it.rule.source, it.reason, code(it.scenario)) for it in DEPARTURES)
    return sections(
        "`kafka_release` (`cluster.kafka_release` in a scenario, a parameter of studies, `--kafka-release` of "
        "`isray up`, `isray explore` and `isray fuzz`) selects the release of Apache Kafka whose rules hold in the "
        "generations `kip-497` and `kip-966-elr`; the newest is the default. Releases that decide alike share a name. "
        "Another release from 4.0 to 4.4 stands for the one that decides as it does.",
        "## Which release runs which generation",
        table(("generation", "releases"), ((code(name), it.releases) for name, it in GENERATION_RELEASES.items())),
        "## What changed",
        table(("rule", "since", "before", "since then", "source"), changes),
        table(("release", "stands for", *(code(it.name) for it in RELEASE_CHANGES)), has),
        "## What isray does otherwise in every release",
        table(("rule", "Kafka", "where", "isray", "scenario"), departed),
    )
