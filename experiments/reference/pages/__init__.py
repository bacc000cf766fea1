"""One module per page: TITLE (heading), SUMMARY (line of the index), `page() -> str` (Markdown below the heading)."""
