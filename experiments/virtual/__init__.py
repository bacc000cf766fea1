"""Client code in virtual time: an application's coroutine with its unmodified library, and a simulated cluster."""
