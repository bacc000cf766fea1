"""The engine on Ray, and clusters on Ray that run for other commands.

- `engine`: the `Engine` of an experiment, with `session` (which Ray).
- `supervisor`, `launch`, `cluster_state`, `__main__`: a cluster that `isray up` keeps running, in the foreground or as
  a background process, and its state file.
- `connection`: the way from another command to such a cluster.
- `directories`, `dump`: the directories of nodes, read or formatted while the node does not run.
"""
