"""The story of a run: a transcript for people, one line per trace event that has a sentence, under a heading per step.

Each event class says its own sentence (`protocol/events`); `render.py` orders the lines and adds time and node.
"""
