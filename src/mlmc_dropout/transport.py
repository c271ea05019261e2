"""How the model and the inputs reach workers: once each, not with every task."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from mlmc_dropout.errors import ExecutionError
from mlmc_dropout.rounds import Run

__all__ = ["Files", "Scattered", "Transport", "dumps"]


def dumps(value: Any) -> bytes:
    """Pickled, by cloudpickle if it is there: it also takes lambdas and what is defined in a script."""
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
        """Arguments for model and inputs; ``missing``: a worker has said that it needs the data itself."""

    def forget(self, run: Run) -> None:
        """The run's inputs are not needed any more."""

    def refresh(self) -> None:
        """What was sent may be lost."""

    def close(self) -> None:
        """Nothing is needed any more."""


class Files:
    """Through files in a temporary folder; a worker that cannot see it asks for the data and gets it."""

    def __init__(self, sampler: Any) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mlmc-dropout-"))
        self._model = self._folder / "model"
        self._model.write_bytes(dumps(sampler))
        self._inline = False  # workers do not see our files: inputs go with the items

    def payloads(self, run: Run, missing: bool) -> tuple[Any, Any]:
        """Paths; the data itself where paths are of no use."""
        path = self._folder / f"inputs-{run.index}"
        if not path.exists():
            path.write_bytes(dumps(run.source.batch))
        self._inline = self._inline or missing
        model = self._model.read_bytes() if missing else str(self._model)
        return model, path.read_bytes() if self._inline else str(path)

    def forget(self, run: Run) -> None:
        """Remove the inputs' file."""
        (self._folder / f"inputs-{run.index}").unlink(missing_ok=True)

    def refresh(self) -> None:
        """Files do not get lost."""

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Scattered:
    """Through Dask's own memory: the model on every worker, inputs where they are needed."""

    def __init__(self, sampler: Any, client: Any) -> None:
        self._client = client
        self._data = dumps(sampler)
        self._model: Any = None
        self._inputs: dict[int, Any] = {}

    def payloads(self, run: Run, missing: bool) -> tuple[Any, Any]:
        """Dask futures, which stand for the bytes on whatever worker runs the item."""
        if self._model is None:
            self._model = self._client.scatter(self._data, broadcast=True, hash=False)
        if run.index not in self._inputs:
            self._inputs[run.index] = self._client.scatter(dumps(run.source.batch), hash=False)
        return self._model, self._inputs[run.index]

    def forget(self, run: Run) -> None:
        """Dask frees data that nobody refers to."""
        self._inputs.pop(run.index, None)

    def refresh(self) -> None:
        """Data scattered to a worker that died has to be sent again."""
        self._model = None
        self._inputs.clear()

    def close(self) -> None:
        """Dask frees data that nobody refers to."""
        self.refresh()
