"""Spreads tasks over processes or a Ray cluster; results arrive in the order in which they are ready.

Processes and Ray live as long as the block of `workers`, however many times tasks are spread in it. What a worker does
not return is lost with it, so a caller that must lose nothing stores each result when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from experiments.support.processes import process_pool

ON_RAY = "ray"
TASKS_PER_WORKER = 2

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class WorkerLost(Exception):
    """A process that ran tasks ended: it was killed, or the machine has no memory left."""


class Spread:
    """Runs tasks, of which it keeps `at_most` under way. `submit` begins one; `completed` waits until at least one of
    those under way is complete, and returns the results of these, and the others.
    """

    def __init__(
        self, submit: Callable[..., Any], completed: Callable[[list[Any]], tuple[list[Any], list[Any]]], at_most: int
    ) -> None:
        self._submit, self._completed, self._at_most = submit, completed, at_most

    def __call__(
        self, function: Callable[[_Task], _Result], tasks: Iterable[_Task], is_over: Callable[[], bool]
    ) -> Iterator[_Result]:
        """Runs `function` on each task, and yields the results. No task begins once `is_over` is true; those that have
        begun are completed. WorkerLost if a worker ends.
        """
        waiting = iter(tasks)
        under_way: list[Any] = []
        while True:
            while len(under_way) < self._at_most and not is_over():
                begun = [self._submit(function, task) for task in islice(waiting, 1)]
                if not begun:
                    break
                under_way += begun
            if not under_way:
                return
            results, under_way = self._completed(under_way)
            yield from results


@contextmanager
def workers(jobs: int | str) -> Iterator[Spread]:
    """Workers for the block: 1 is this process, another number so many processes, ON_RAY the tasks of a Ray cluster. An
    exception that leaves the block ends processes at once. For Ray the caller has called `stay_on_loopback` before Ray
    is imported.
    """
    if jobs == 1:
        yield Spread(partial, lambda under_way: ([under_way[0]()], []), 1)
    elif isinstance(jobs, int):
        with process_pool(jobs) as pool:

            def completed(under_way: list[Future[Any]]) -> tuple[list[Any], list[Future[Any]]]:
                done, left = wait(under_way, return_when=FIRST_COMPLETED)
                try:
                    return [future.result() for future in done], list(left)
                except BrokenProcessPool as error:
                    raise WorkerLost("a worker process ended before its task was complete") from error

            yield Spread(pool.submit, completed, TASKS_PER_WORKER * jobs)
    else:
        yield from _ray_tasks()


def _ray_tasks() -> Iterator[Spread]:
    from experiments.engines.ray.session import ray_session

    with ray_session():
        import ray
        from ray.exceptions import WorkerCrashedError

        apply: Any = ray.remote(lambda function, task: function(task))
        resources: dict[str, float] = ray.cluster_resources()

        def completed(under_way: list[Any]) -> tuple[list[Any], list[Any]]:
            done, left = ray.wait(under_way)
            try:
                return [ray.get(reference) for reference in done], left
            except WorkerCrashedError as error:
                raise WorkerLost("a worker of Ray ended, and so did those that repeated its task") from error

        yield Spread(apply.remote, completed, TASKS_PER_WORKER * max(1, int(resources.get("CPU", 1))))
