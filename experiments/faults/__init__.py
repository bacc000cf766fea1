"""Faults: one schema, three ways to write it, and what carries them out on the simulator."""
