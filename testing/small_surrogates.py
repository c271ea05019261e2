"""Small surrogates for tests of the experiments."""

from __future__ import annotations

from mlmc_dropout import pinn
from mlmc_dropout.pinn.networks import SharedTrunk, initialized, mlp
from mlmc_dropout.reproduction import surrogates
from mlmc_dropout.reproduction.surrogates import Network, Surrogate

__all__ = ["forward", "inverse", "load"]


def forward(seed: int = 0) -> Surrogate:
    """A small untrained network in place of the boundary-layer surrogate."""
    config = pinn.BoundaryLayer.profile("paper")
    model = initialized(lambda: mlp(8, 2, "silu", 0.1), "torch", seed, config.torch_dtype)
    return Surrogate("boundary-layer", model.eval(), config.equation)


def inverse(seed: int = 0) -> Surrogate:
    """A small untrained network in place of the source-inference surrogate."""
    config = pinn.SourceInference.profile("paper")
    model = initialized(lambda: SharedTrunk(8, 2, "tanh", 0.2), "xavier", seed, config.torch_dtype)
    return Surrogate("source-inference", model.eval(), config.equation)


def load(name: str) -> Network:
    """The small surrogate of that name; a regressor or classifier is small anyway."""
    small = {"boundary-layer": forward, "source-inference": inverse}
    return small[name]() if name in small else surrogates.load(name)
