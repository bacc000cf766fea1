"""`python -m experiments.reference` writes docs/reference, docs/kafka-releases.md, docs/pictures and the files of
deploy/ that are generated.
"""

from __future__ import annotations

from experiments.reference import generate, kafka_releases, monitoring, pictures

if __name__ == "__main__":
    generate.write()
    kafka_releases.write()
    monitoring.write()
    pictures.write()
