"""Scenario files: model, loader, runner, and the scenarios that come with isray (docs/scenarios.md)."""
