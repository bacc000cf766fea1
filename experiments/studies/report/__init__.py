"""The report of a study: one HTML file that stands alone, offline, on screen and on paper."""

from __future__ import annotations
