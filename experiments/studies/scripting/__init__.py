"""Studies from Python: a study as an object, its trials and its numbers as tables."""
