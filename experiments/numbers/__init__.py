"""The numbers that the source documents claim, each measured (section L of the requirements, docs/numbers.md)."""
