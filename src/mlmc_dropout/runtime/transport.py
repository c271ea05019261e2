"""How the model and the inputs reach workers: once each, not with every task."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from mlmc_dropout.errors import ExecutionError
from mlmc_dropout.runtime.run import Run

__all__ = ["Delivered", "Files", "Transport", "dumps"]


def dumps(value: Any) -> bytes:
    """Pickled, by cloudpickle if it is there: it also takes lambdas and what is defined in a script.

    Args:
        value: Anything that can be pickled.

    Returns:
        Its bytes.

    Raises:
        ExecutionError: If it cannot be pickled.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]

        data: bytes = cloudpickle.dumps(value)
    except ImportError:
        data = _plain(value)
    return data


def _plain(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise ExecutionError(
            f"the model, its transform or the inputs cannot be sent to workers ({error}); "
            "define them in an importable module, or  pip install cloudpickle"
        ) from error


class Transport(Protocol):
    """What to submit beside an item so that its worker finds model and inputs."""

    def payloads(self, run: Run, missing: bool) -> tuple[Any, Any]:
        """Arguments for model and inputs; ``missing``: a worker has said that it needs the data itself.

        Args:
            run: A run.
            missing: Whether a worker has said that it lacks the data.

        Returns:
            The model and the inputs, or what stands for them.
        """

    def forget(self, run: Run) -> None:
        """The run's inputs are not needed any more.

        Args:
            run: A finished run.
        """

    def close(self) -> None:
        """Nothing is needed any more."""


class Files:
    """Through files in a temporary folder; a worker that cannot see it asks for the data and gets it.

    Attributes:
        folder: The folder.
    """

    def __init__(self, sampler: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mlmc-dropout-"))
        self._model = self.folder / "model"
        self._model.write_bytes(dumps(sampler))
        self._inline = False  # workers do not see our files: inputs go with the items

    def payloads(self, run: Run, missing: bool) -> tuple[Any, Any]:
        """Paths; the data itself where paths are of no use.

        Args:
            run: A run.
            missing: Whether a worker has said that it lacks the data.

        Returns:
            The model and the inputs, or what stands for them.
        """
        path = self.folder / f"inputs-{run.index}"
        if not path.exists():
            path.write_bytes(dumps((run.source.batch, run.source.numbers)))
        self._inline = self._inline or missing
        model = self._model.read_bytes() if missing else str(self._model)
        return model, path.read_bytes() if self._inline else str(path)

    def forget(self, run: Run) -> None:
        """Remove the inputs' file.

        Args:
            run: A finished run.
        """
        (self.folder / f"inputs-{run.index}").unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Delivered:
    """Through a Dask plugin: every worker is given the model when it starts, also one that replaces another."""

    def __init__(self, sampler: Any, client: Any, job: str) -> None:
        from mlmc_dropout.runtime.delivery import Delivery

        self._client, self._job = client, job
        self._model = dumps(sampler)
        self._client.register_plugin(Delivery(job, self._model), name=job)

    def payloads(self, run: Run, missing: bool) -> tuple[Any, Any]:
        """The inputs; the model only if a worker says that it was forgotten.

        Args:
            run: A run.
            missing: Whether a worker has said that it lacks the data.

        Returns:
            The model and the inputs, or what stands for them.
        """
        return self._model if missing else None, dumps((run.source.batch, run.source.numbers))

    def forget(self, run: Run) -> None:
        """Nothing is kept for a run.

        Args:
            run: A finished run.
        """

    def close(self) -> None:
        """Take the model from the workers, if they are still there."""
        if self._client.status == "running":
            self._client.unregister_worker_plugin(self._job)
