"""Trace events: what nodes, their hosts and engines report to observers. Nodes never read them.

Each kind of event is a class with declared fields, from which docs/reference/trace-events.md is generated. `registry`
lists all of them and converts them to and from their recorded form.
"""
