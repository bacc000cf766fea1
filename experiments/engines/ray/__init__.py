"""The engine on Ray (`engine`), clusters on Ray that run for other commands (`supervisor`, `connection`), and the
directories of nodes, read or formatted while the node does not run (`directories`, `dump`).
"""
