"""The protocol's nodes as Ray actors.

Experiments kill nodes on purpose, so Ray's line about a killed worker is suppressed by the filter that Ray reads when
it is imported.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
