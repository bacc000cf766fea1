"""The protocol's nodes as Ray actors.

Ray prints a warning to the standard output of its driver whenever a worker process is killed. Here that is what a crash
is, so the line is left out, by Ray's own filter, which Ray reads when it is imported.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
