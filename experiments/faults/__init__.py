"""Faults: a kind each in `kinds`, drawn from rates or written out, and carried out on the simulator."""
