"""Fuzzing: random plans of faults and load, run on the simulator and checked; violations are shrunk and replayed."""
