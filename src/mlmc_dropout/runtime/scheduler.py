"""Hands out the tasks of all runs, merges what comes back, until everything is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlmc_dropout.errors import NonFiniteOutputError
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.checkpoint import CheckpointStore
from mlmc_dropout.runtime.collector import ResultCollector
from mlmc_dropout.runtime.executors import TaskPool
from mlmc_dropout.runtime.run import Run

__all__ = ["run_all"]


def run_all(
    runs: Iterator[Run], pool: TaskPool, checkpoints: CheckpointStore, report: Callable[[Run], None]
) -> ResultCollector:
    """Hand out tasks and merge what comes back, until all runs are finished or the user has had enough.

    Args:
        runs: One for every batch of inputs, made when it is its turn.
        pool: Who runs the tasks.
        checkpoints: Where progress is saved.
        report: Who is told of it.

    Returns:
        The outcomes of all runs; of those under way, too, after Ctrl-C.

    Raises:
        NonFiniteOutputError: If passes gave NaN or infinite outputs; with the result of the passes before.
        KeyboardInterrupt: If the user stopped before anything was known.
    """
    collector = ResultCollector()
    try:
        while True:
            _hand_out(runs, collector, pool, report)
            if pool.idle:
                return collector
            run, start, states = pool.collect()
            run.accept(start, states)
            checkpoints.note(run)
            report(run)
            if run.finished:
                pool.forget(run)
                collector.close(run)
    except KeyboardInterrupt:
        if not collector.outcomes(Status.STOPPED):
            raise
        collector.stopped = True
        return collector
    except NonFiniteOutputError as error:
        error.partial = collector.result(Status.FAILED)
        raise
    finally:
        checkpoints.flush(collector.active)


def _hand_out(runs: Iterator[Run], collector: ResultCollector, pool: TaskPool, report: Callable[[Run], None]) -> None:
    """Give workers all they have room for: tasks of the runs under way first, then the next batch of inputs."""
    while pool.has_room:
        run = next((run for run in collector.active if run.unsent), None)
        if run is None:
            run = next(runs, None)
            if run is None:
                return
            collector.open(run)
            if run.finished:  # a checkpoint had it all
                report(run)
                collector.close(run)
                continue
        pool.submit(run, *run.take(pool.size(run)))
