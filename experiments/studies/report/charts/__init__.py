"""The charts of the report, as Vega-Lite by way of Altair; each module has one kind of chart.

A chart is drawn twice from one specification: as SVG by vl-convert when the report is written, and by Vega in the
browser, at the width of the window. Colours are CSS variables of the page in both. In the browser, charts of rates have
the parameter `partitions`, by which the page's script scales them.
"""

from __future__ import annotations
