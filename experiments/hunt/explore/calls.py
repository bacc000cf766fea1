"""What functions and procedures hold, read from what Python keeps of them.

A node may hold functions for later: methods bound to arguments, functions within functions, and, in `v3`, procedures in
the middle of their work. A procedure is a generator, so that its steps read in the order in which they happen; where it
has stopped and what its variables are is known to Python alone. Written as objects with fields, which keys could walk,
each wait would cut a procedure in two, in the code that nodes run, for the search only. So this module reads frames and
closures, and no other does. It needs the interpreted sources, as the search does.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType, GeneratorType

CALLS = frozenset({partial, FunctionType, GeneratorType, zip, enumerate})
"""Functions, and what goes on with them. How far a loop over `zip` or `enumerate` is, its variables show."""


def held_by(call: object) -> tuple[object, ...]:
    """The name of a function with what it has been given; of a procedure that has begun with where it has stopped, its
    variables, and the procedure that it waits for.
    """
    if isinstance(call, partial):
        return "partial", call.func, call.args, call.keywords
    if isinstance(call, FunctionType):
        return call.__qualname__, *[cell.cell_contents for cell in call.__closure__ or ()]
    if isinstance(call, GeneratorType):
        frame = call.gi_frame
        if frame is None:
            return call.__qualname__, "ended"
        return call.__qualname__, frame.f_lasti, tuple(frame.f_locals.items()), call.gi_yieldfrom
    return (type(call).__name__,)
