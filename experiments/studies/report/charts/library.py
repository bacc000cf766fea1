"""The scripts of Vega that a page has in it, bundled once for each version of vl-convert.

Bundling takes more than a second of processor time, as long as all else that a page of a few charts needs, and gives
the same text each time. So the text is kept in `~/.cache/isray`, behind its own digest: a file that was cut off or
changed is made again, and where none can be written the text is bundled for each page.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version

import vl_convert

from experiments.support.atomic import write_bytes
from experiments.support.cache import cache_folder

SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def library() -> str:
    """The scripts of Vega, Vega-Lite and Vega-Embed, as one module that sets `vegaEmbed` of the window."""
    path = cache_folder(os.environ) / f"vega-of-vl-convert-{version('vl-convert-python')}.js"
    with suppress(OSError):
        digest, _, content = path.read_bytes().partition(b"\n")
        if digest == _digest(content):
            return content.decode()
    text: str = vl_convert.javascript_bundle(SNIPPET)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, _digest(text.encode()) + b"\n" + text.encode())
    return text


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def warm_up() -> None:
    """What the first page of a process needs besides its numbers: the scripts, and V8 with Vega in it. A command calls
    it while it waits for the numbers."""
    library()
    vl_convert.vegalite_to_svg({"mark": "point", "data": {"values": []}})
