"""Mutants made by machine: one-line changes of the protocol's source, tested by processes that run the changed code."""
