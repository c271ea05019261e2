"""Prefixes of a replicate: the pooled update equals the definition at every fidelity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmc_dropout.methods.mlmc.coupling import Prefix, prefix_estimates


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e6]))
def test_prefixes_are_the_sample_moments_of_the_first_passes(steps, seed, offset):
    T = np.cumsum(steps)
    passes = offset + np.random.default_rng(seed).normal(size=(T[-1], 3, 2))
    found = prefix_estimates(np.split(passes, T[:-1]), T.tolist())
    assert [prefix.T for prefix in found] == T.tolist()
    for prefix in found:
        np.testing.assert_allclose(prefix.Y, passes[: prefix.T].mean(axis=0), rtol=1e-12, atol=1e-12)
        if prefix.T > 1:
            exact = passes[: prefix.T].var(axis=0, ddof=1)
            np.testing.assert_allclose(prefix.V, exact, rtol=1e-7, atol=1e-9 if offset else 1e-14)


def test_only_the_fidelities_asked_for_are_kept():
    passes = np.arange(12.0).reshape(12, 1)
    found = prefix_estimates([passes[:2], passes[2:4], passes[4:8], passes[8:]], (4, 12))
    assert [prefix.T for prefix in found] == [4, 12]


def test_the_update_of_the_paper():
    """Eq. variance_update, written out: (T−1) V(T) = (t−1) V(t) + (s−1) V_new + (t s/T) (Y_new − Y(t))²."""
    x = np.random.default_rng(0).normal(size=(7, 1))
    a, b = x[:4], x[4:]
    rhs = 3 * a.var(ddof=1) + 2 * b.var(ddof=1) + 4 * 3 / 7 * (b.mean() - a.mean()) ** 2
    fine = Prefix(0, np.zeros(()), np.zeros(())).extend(a).extend(b)
    assert fine.sum_of_squares[0] == pytest.approx(rhs, rel=1e-14)
    assert fine.V[0] == pytest.approx(x.var(ddof=1), rel=1e-14)
