"""`python -m experiments.reference` writes docs/reference, docs/kafka-releases.md and docs/pictures."""

from __future__ import annotations

from experiments.reference import generate, kafka_releases, pictures

if __name__ == "__main__":
    generate.write()
    kafka_releases.write()
    pictures.write()
