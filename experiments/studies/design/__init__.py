"""What is asked of a study: parameters, study and cells, and the file that describes them."""

from __future__ import annotations
