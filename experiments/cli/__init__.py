"""The `isray` command: one module per command, which parses, calls and prints."""
