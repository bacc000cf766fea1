"""Processor time and memory of a process and its descendants, waited for or not."""

from __future__ import annotations

import subprocess
import sys

from experiments.bench.pipeline import sampled

SPUN_S = 0.5
CHILD = f"""
import sys, time
data = bytearray(50_000_000)
while time.process_time() < {SPUN_S}:
    pass
print(len(data), flush=True)
sys.stdin.read()
"""
PARENT = f"""
import subprocess, sys, threading
threading.Thread(target=lambda: subprocess.Popen([sys.executable, "-c", {CHILD!r}])).start()
sys.stdin.read()
"""


def test_a_child_of_another_thread_that_is_not_waited_for_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout, sampled(process.pid) as usage:
        process.stdout.readline()
        usage.look()
        used_s, peak_mb = usage.cpu_s, usage.peak_mb
        process.stdin.close()
        process.wait()
    assert used_s >= SPUN_S
    assert peak_mb >= 50
    assert usage.cpu_s >= used_s
