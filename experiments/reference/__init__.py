"""The pages in docs/reference, generated from the code that they describe.

`make reference` writes them; tests/house/test_reference.py fails when one is stale. A new module in `pages/` is a new
page: its name, with dashes, is the file's name.
"""
