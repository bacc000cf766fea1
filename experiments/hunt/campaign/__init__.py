"""Campaigns of the fuzz: long searches in rounds, kept in a folder, guided by what was reached (docs/fuzz.md)."""
