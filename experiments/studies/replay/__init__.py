"""Runs one trial of a study again, and keeps it for the explorer: the story behind a number."""
