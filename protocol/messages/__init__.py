"""Every message and record of the protocol, and the codec.

Importing this package registers all message types, so that `codec.decode` knows them.
"""

from __future__ import annotations

from protocol.messages import admin, batch, commands, control, data, records

__all__ = ["admin", "batch", "commands", "control", "data", "records"]
