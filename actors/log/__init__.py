"""A replica's log in files: segments, indexes, checkpoints, the recovery at start, and dump (docs/log-format.md)."""
