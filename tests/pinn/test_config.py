"""Configs: what they say survives a round trip, and what they must not say is refused by name."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmc_dropout.errors import ConfigError
from mlmc_dropout.pinn import BoundaryLayer, Optimizer, SourceInference
from mlmc_dropout.pinn.config import PROFILES, dump, parse
from mlmc_dropout.pinn.problems import by_name

PROBLEMS = by_name()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_round_trip(problem: str, profile: str) -> None:
    config = PROBLEMS[problem].profile(profile)
    assert parse(dump(config), PROBLEMS) == config


@given(
    rate=st.floats(1e-300, 1e300),
    epsilon=st.floats(1e-300, 1e300),
    seed=st.integers(0, 2**63 - 1),
    dropout=st.floats(0.0, 1.0, exclude_max=True),
)
def test_every_number_survives(rate: float, epsilon: float, seed: int, dropout: float) -> None:
    paper = BoundaryLayer.profile("paper")
    config = dataclasses.replace(
        paper,
        seed=seed,
        equation=BoundaryLayer(epsilon=epsilon),
        network=dataclasses.replace(paper.network, dropout=dropout),
        optimizer=dataclasses.replace(paper.optimizer, learning_rate=rate),
    )
    assert parse(dump(config), PROBLEMS) == config


def test_the_papers_values_of_the_forward_problem() -> None:
    config = parse("", PROBLEMS, "boundary-layer")
    assert config.equation == BoundaryLayer(epsilon=1.0, gamma=100.0)
    assert (config.epochs, config.points, config.repeats, config.keep) == (50_000, 200, 5, "best")
    assert dataclasses.astuple(config.network) == (64, 3, "silu", 0.1, "torch")
    assert dataclasses.astuple(config.optimizer) == (1e-3, 0.5, 10_000)
    assert dataclasses.astuple(config.uzawa) == (0.01, 50, 0)


def test_the_papers_values_of_the_inverse_problem() -> None:
    config = parse("", PROBLEMS, "source-inference")
    assert config.equation == SourceInference(alpha=1e-4, beta=1e-4, delta=0.025)
    assert (config.epochs, config.points, config.repeats, config.keep) == (200_000, 200, 5, "last")
    assert dataclasses.astuple(config.network) == (128, 4, "tanh", 0.2, "xavier")
    assert (config.optimizer.rate(0), config.optimizer.rate(199_999)) == (1e-3, 1e-3)
    assert dataclasses.astuple(config.uzawa) == (2.5e-5, 50, 20)


def test_a_file_states_only_what_differs() -> None:
    text = 'problem = "boundary-layer"\nprofile = "quick"\nepochs = 7\n[equation]\nepsilon = 2\n[network]\nwidth = 12\n'
    config, quick = parse(text, PROBLEMS), BoundaryLayer.profile("quick")
    assert (config.epochs, config.equation, config.network.width) == (7, BoundaryLayer(epsilon=2.0), 12)
    assert config.network.depth == quick.network.depth
    assert isinstance(config.equation, BoundaryLayer)
    assert isinstance(config.equation.epsilon, float)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("epoch = 3", "'epoch'.*'epochs'"),
        ("[network]\nwidht = 3", r"'network\.widht'.*'width'"),
        ("[equation]\nalpha = 1.0", r"'equation\.alpha'.*epsilon, gamma"),
        ("zzz = 1", "'zzz'.*known here: equation, epochs"),
        ('epochs = "many"', "epochs must be int: got 'many'"),
        ("epochs = 3.0", r"epochs must be int: got 3\.0"),
        ("epochs = true", "epochs must be int: got True"),
        ("compile = 1", "compile must be bool: got 1"),
        ("network = 3", "network must be a section: got 3"),
        ("[uzawa]\nrho = nan", r"uzawa\.rho must be finite: got nan"),
        ("[optimizer]\nlearning_rate = -1.0", r"optimizer\.learning_rate must be a positive number: got -1\.0"),
        ("[network]\ndropout = 1.0", r"network\.dropout must lie in \[0, 1\): got 1\.0"),
        ('[network]\nactivation = "relu"', r"network\.activation must be one of silu, .*got 'relu'"),
        ("[equation]\nepsilon = 0.0", r"equation\.epsilon must be a positive number: got 0\.0"),
        ("epochs = 0", "epochs must be at least 1: got 0"),
        ("points = 1", "points must be at least 2: got 1"),
        ('keep = "first"', "keep must be one of best, last: got 'first'"),
        ('dtype = "int8"', "dtype must be one of float32, float64: got 'int8'"),
        ('profile = "fast"', "profile must be one of paper, quick: got 'fast'"),
        ('problem = "poisson"', "is for the problem 'poisson', not 'boundary-layer'"),
        ("epochs = ", "not valid TOML"),
    ],
)
def test_bad_configs_are_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(text, PROBLEMS, "boundary-layer")


def test_a_config_must_name_a_known_problem() -> None:
    with pytest.raises(ConfigError, match=r"names no problem.*boundary-layer"):
        parse("epochs = 3", PROBLEMS)
    with pytest.raises(ConfigError, match=r"unknown problem 'heat'.*source-inference"):
        parse('problem = "heat"', PROBLEMS)


def test_the_learning_rate_is_halved_on_time() -> None:
    schedule = Optimizer(learning_rate=1.0, decay=0.5, decay_every=10)
    assert [schedule.rate(epoch) for epoch in (0, 9, 10, 19, 20)] == [1.0, 1.0, 0.5, 0.5, 0.25]
