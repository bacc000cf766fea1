"""`python -m experiments.reference` writes docs/reference."""

from __future__ import annotations

from experiments.reference.generate import write

if __name__ == "__main__":
    write()
