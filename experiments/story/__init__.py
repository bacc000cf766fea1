"""The story of a run: a transcript for people, a line per trace event that has a sentence, under a heading per step."""
