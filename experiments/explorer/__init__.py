"""The run explorer: one run, or two side by side, as a page that a browser opens offline.

A run is a sequence of events in an order that respects causality: what nodes report (trace events), the sending and the
receipt of each message, timers that are due, what the experiment does to nodes and links, and violations. A recording
of processes has trace events and no messages.

**Happens-before** (Lamport, Time, Clocks, and the Ordering of Events, 1978): an event precedes the later events of its
node, and the sending of a message precedes its receipt. `RunEvent.cause` is the second half of this relation; the page
computes the causal past of any event from both. Drawing is on a canvas: there is no library for space-time diagrams.
"""
