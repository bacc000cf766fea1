"""One module per page: the constants TITLE (heading) and SUMMARY (one line of the index), and `page() -> str`, the
Markdown below the heading.
"""
