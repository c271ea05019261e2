"""A Dask plugin that hands a worker its model when it starts. Imports Dask; imported only when that is in use."""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from mlmc_dropout.runtime.worker import DELIVERED

__all__ = ["Delivery"]


class Delivery(WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """The pickled model of one job."""

    def __init__(self, job: str, model: bytes) -> None:
        self.job, self.model = job, model

    def setup(self, worker: Any) -> None:
        """Called on every worker, when it starts or when the plugin is registered.

        Args:
            worker: The worker of Dask.
        """
        DELIVERED[self.job] = self.model

    def teardown(self, worker: Any) -> None:
        """Called when the job is over.

        Args:
            worker: The worker of Dask.
        """
        DELIVERED.pop(self.job, None)
