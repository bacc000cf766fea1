"""`python -m experiments.reference` writes docs/reference and docs/pictures."""

from __future__ import annotations

from experiments.reference import generate, pictures

if __name__ == "__main__":
    generate.write()
    pictures.write()
