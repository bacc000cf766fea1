"""Trace events: what nodes, their hosts and engines report to observers. Nodes never read them.

Each kind of event is a class with declared fields. `base` has the base classes; the other modules declare the events of
one emitter each. `registry` lists all of them and gives the recorded form of one; `decode` reads that back.
docs/reference/trace-events.md is generated from the declarations.
"""
