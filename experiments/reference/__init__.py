"""The pages in docs/reference, generated from the code that they describe.

`make reference` writes them; tests/house/test_reference.py fails when one is stale. A page is a module in `pages/`: its
name, with dashes, is the file's name. `generate.py` finds the modules, so a new module is a new page.
`pictures.py` draws the pictures of runs in docs/pictures.
"""
