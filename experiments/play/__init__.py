"""The page that steers a cluster: `session.py` (what a page steers), `rules.py` (why a state changed), `server.py`.

A session is a list of steps of a scenario. An action is such a step, carried out at once, and the time that passes in
between is the step `wait`. Steps and a seed determine every state, so the list is all that has to be kept: rewinding is
replaying its beginning, and saving is writing it as a file.
"""
