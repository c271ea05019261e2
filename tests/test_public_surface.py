"""The public names, as fixed: what users import must not vanish or change its arguments."""

from __future__ import annotations

import inspect
import re

import mlmc_dropout as md
from mlmc_dropout import errors


def parameters(function):
    return inspect.signature(function).parameters


def test_names():
    wanted = {"DropoutSampler", "Ladder", "Moments", "allocate", "estimate", "load_result", "theory"}
    assert wanted | {"MLMCDropoutError", "Result", "Status"} <= set(md.__all__)
    assert all(hasattr(md, name) for name in md.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", md.__version__)


def test_estimate():
    wanted = (
        "model x method ladder counts levels budget tolerance tolerance_variance transform masks seed executor "
        "progress checkpoint"
    )
    found = parameters(md.estimate)
    assert set(wanted.split()) <= set(found)
    assert found["levels"].default == "nested" and found["masks"].default == "independent"
    assert found["seed"].default == 0 and found["executor"].default is None


def test_sampler():
    assert list(parameters(md.DropoutSampler))[:2] == ["model", "masks"]
    assert list(parameters(md.DropoutSampler.sample))[1:4] == ["x", "passes", "seed"]
    assert callable(md.DropoutSampler.sites)


def test_ladders_and_allocation():
    assert list(parameters(md.Ladder.geometric)) == ["first", "ratio", "max_fidelity"]
    assert list(parameters(md.Ladder.dyadic)) == ["levels"]
    assert list(parameters(md.allocate))[:5] == ["ladder", "budget", "target", "cost", "moments"]
    plan = md.allocate(md.Ladder((4, 8, 16)), 1000)
    assert len(plan.continuous) == len(plan.counts) == 3 and isinstance(plan.cost, int)
    assert (md.Moments(mu2=1.0, mu4=3.0).mu2, md.Moments(mu2=1.0).mu4) == (1.0, None)


def test_result():
    wanted = (
        "mean variance mean_stderr variance_stderr S2_mean S2_variance cost levels status method seed metadata "
        "save to_xarray to_dataframe"
    )
    assert all(hasattr(md.Result, name) for name in wanted.split())
    assert {"fidelity", "count", "mean", "variance", "kurtosis", "cost"} <= set(md.LevelStats.__dataclass_fields__)


def test_statuses_are_sentences():
    assert all(re.fullmatch(r"[A-Z].*\.", status.value) for status in md.Status)


def test_every_error_is_one_of_ours():
    raised = [getattr(errors, name) for name in errors.__all__]
    assert md.MLMCDropoutError is errors.MLMCDropoutError
    assert all(issubclass(error, (md.MLMCDropoutError, UserWarning)) for error in raised)


def test_every_theory_function_is_documented():
    for name in md.theory.__all__:
        assert inspect.getdoc(getattr(md.theory, name)), name
