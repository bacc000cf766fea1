"""The protocol core: deterministic state machines without clock, I/O or threads (docs/architecture.md)."""
