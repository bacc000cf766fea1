"""Failure logs as their owners have them, converted to the file that `failures:` of a study takes."""
