"""The protocol's nodes as Ray actors.

Ray prints a warning to the driver's standard output whenever a worker process is killed. Experiments kill nodes on
purpose, so Ray's own filter, which it reads when it is imported, suppresses that line.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
