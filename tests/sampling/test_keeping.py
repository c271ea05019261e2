"""Preparations that are kept: used again where nothing changed, never where something did.

Every change is made to a model that has been prepared; the answer has to be that of a model that was never prepared.
"""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.sampling import census, keeping, sampler

SCALE = OTHER = 1.0
this_module = sys.modules[__name__]


def helper():
    return INSIDE


INSIDE = 1.0


class Config:
    factor = 1.0

    def __init__(self) -> None:
        self.p = 0.2
        self.scales = [1.0, 2.0]
        self.offset = torch.zeros(2)


class Net(nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(3, 16), nn.Dropout(0.3), nn.Linear(16, 2)
        self.config, self.p = Config(), 0.4
        self.register_buffer("shift", torch.zeros(2))
        self.table = torch.ones(2)
        self.array = np.ones(2, dtype=np.float32)

    def forward(self, x):
        hidden = F.dropout(torch.tanh(self.first(x)), self.p, self.training)
        hidden = F.dropout(hidden, self.config.p, self.training)
        out = self.second(self.drop(hidden)) * self.config.scales[0] * self.table + self.shift + self.config.offset
        return self.scaled(out * torch.from_numpy(self.array))

    def scaled(self, out):
        return out * SCALE * helper() * self.gain * this_module.OTHER * Config.factor


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().eval()


X = torch.linspace(-1, 1, 15).reshape(5, 3)


def answer(model, x=X, **settings):
    result = md.estimate(model, x, **{"budget": 20, "method": "auto", **settings})
    return result.mean, result.variance, result.mean_stderr


def fresh(model, x=X, **settings):
    keeping._KEPT.clear()
    return answer(model, x, **settings)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def count_censuses(monkeypatch):
    taken = []
    take = census.take_census
    monkeypatch.setattr(sampler, "take_census", lambda *a: taken.append(1) or take(*a))
    keeping._KEPT.clear()
    return taken


def test_the_second_call_prepares_nothing_and_gives_the_same_bits(net, count_censuses):
    first = answer(net)
    assert same(first, answer(net)) and len(count_censuses) == 1
    answer(net, X.repeat(7, 1))
    answer(net, transform=lambda out: out.exp())
    assert len(count_censuses) == 2, "another number of rows is the same kind; a transform is another"
    for _ in range(2):
        answer(net, transform=lambda out: out.exp())  # a new function with the same code
    assert len(count_censuses) == 3  # this line and the one above hold different code


def swap_layer(model):
    model.second = copy.deepcopy(model.second)
    with torch.no_grad():
        model.second.weight.mul_(3)


def swap_activation(model):
    model.first = nn.Sequential(model.first, nn.ReLU())


def add_hook(model):
    model.second.register_forward_hook(lambda module, args, out: 2 * out)


def in_place(model):
    with torch.no_grad():
        model.first.weight.mul_(2)


def through_data(model):
    model.first.weight.data.mul_(2)


def train_a_step(model):
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    model(X).square().sum().backward()
    optimiser.step()


def new_forward(model):
    model.forward = lambda x: model.second(F.dropout(model.first(x), 0.1, model.training))


def new_global(name):
    return lambda model: setattr(this_module, name, 3.0)


def new_dtype(model):
    model.double()
    model.array = model.array.astype(np.float64)
    model.table, model.config.offset = model.table.double(), model.config.offset.double()


CHANGES = {
    "weights in place": in_place,
    "weights through .data": through_data,
    "weights by an optimiser": train_a_step,
    "a new parameter": lambda m: setattr(m.first, "weight", nn.Parameter(torch.ones(16, 3))),
    "a state dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "the rate of a layer": lambda m: setattr(m.drop, "p", 0.6),
    "a rate in an attribute": lambda m: setattr(m, "p", 0.1),
    "a rate in a configuration": lambda m: setattr(m.config, "p", 0.5),
    "a number in a list": lambda m: m.config.scales.__setitem__(0, 5.0),
    "a buffer": lambda m: m.shift.add_(1.0),
    "a buffer through .data": lambda m: m.shift.data.add_(1.0),
    "a buffer through .numpy()": lambda m: m.shift.numpy().__iadd__(1.0),
    "a plain tensor through .data": lambda m: m.table.data.mul_(2),
    "a plain tensor through .numpy()": lambda m: m.table.numpy().__imul__(2),
    "a tensor in a configuration through .data": lambda m: m.config.offset.data.add_(1.0),
    "a buffer replaced": lambda m: setattr(m, "shift", torch.ones(2)),
    "a plain tensor": lambda m: m.table.mul_(2),
    "a plain tensor replaced": lambda m: setattr(m, "table", torch.full((2,), 2.0)),
    "an array in place": lambda m: m.array.__imul__(2),
    "a layer swapped": swap_layer,
    "another activation": swap_activation,
    "a hook added": add_hook,
    "the forward function": new_forward,
    "a global": new_global("SCALE"),
    "a global of a function that is called": new_global("INSIDE"),
    "an attribute of a module": new_global("OTHER"),
    "an attribute of the class": lambda m: setattr(Net, "gain", 3.0),
    "an attribute of another class": lambda m: setattr(Config, "factor", 3.0),
    "a method": lambda m: setattr(Net, "scaled", lambda self, out: 3.0 * out),
    "the dtype": new_dtype,
    "training mode": lambda m: m.train(),
    "a layer in evaluation mode": lambda m: m.drop.eval(),
}


def outside(monkeypatch):
    """Sees to it that what is not part of the model is as it was, in the end and whenever the result is called."""
    scaled = Net.scaled

    def undo():
        for name in ("SCALE", "INSIDE", "OTHER"):
            monkeypatch.setattr(this_module, name, 1.0)
        monkeypatch.setattr(Net, "gain", 1.0)
        monkeypatch.setattr(Net, "scaled", scaled)
        monkeypatch.setattr(Config, "factor", 1.0)

    undo()
    return undo


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore::mlmc_dropout.ModelWarning")
def test_a_changed_model_is_never_served_from_memory(net, change, monkeypatch):
    undo = outside(monkeypatch)
    twin = copy.deepcopy(net)
    before = fresh(net)
    assert all(same(before, answer(net)) for _ in range(4)), "by now everything is recorded and replayed"
    CHANGES[change](net)
    x = X.double() if change == "the dtype" else X
    after = answer(net, x)
    undo()
    CHANGES[change](twin)
    assert same(after, fresh(twin, x))
    if not change.endswith("mode"):
        assert not same(before, after), "the change has to matter, or nothing is tested"


@pytest.mark.parametrize("name", ["shift", "table"])
@pytest.mark.parametrize("released", [True, False])
def test_a_sampler_that_goes_on_sees_what_was_written_past_the_version(net, name, released):
    passes = sampler.DropoutSampler(net)
    before = passes.sample(X, 20)
    if not released:
        passes.prepare(next(passes.batches(X)))
    getattr(net, name).data.add_(1.0)
    after = passes.sample(X, 20)
    assert torch.equal(after, sampler.DropoutSampler(copy.deepcopy(net)).sample(X, 20))
    assert not torch.equal(before, after)


def test_a_buffer_that_passes_write_to_does_not_cost_a_preparation_per_batch(count_censuses):
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return F.dropout(self.linear(x), 0.2, self.training)

    sampler.DropoutSampler(Counts().eval()).sample([X, X + 1, X + 2], passes=4)
    assert len(count_censuses) == 1


def test_a_buffer_with_nan_is_no_change(net, count_censuses):
    net.register_buffer("unused", torch.full((3,), torch.nan))
    assert same(answer(net), answer(net)) and len(count_censuses) == 1


def test_without_the_check_a_change_would_go_unnoticed(net, monkeypatch):
    """Negative control: the tests above can fail."""
    before = fresh(net)
    monkeypatch.setattr(keeping.Snapshot, "__eq__", lambda self, other: True)
    net.config.scales[0] = 5.0
    assert same(before, answer(net))


@pytest.mark.parametrize(
    "large",
    [
        lambda x: (x > 2).any(),
        lambda x: x.max().item() > 2,
        lambda x: max(x.flatten().tolist()) > 2,
        lambda x: x.numpy().max() > 2,
        lambda x: np.asarray(x).max() > 2,
        lambda x: len(x[x > 2]) > 0,
        lambda x: torch.equal(x.clamp(max=2), x) is False,
    ],
)
@pytest.mark.parametrize("method", ["auto", "pooled"])
def test_a_branch_that_only_new_inputs_take_is_prepared_anew(large, method):
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            out = F.dropout(self.linear(x), 0.2, self.training)
            return F.dropout(out, 0.5, self.training) if large(x) else out

    model = Branches().eval()
    for _ in range(5):
        answer(model, method=method)
    assert same(answer(model, X + 5, method=method), fresh(model, X + 5, method=method))


@pytest.mark.parametrize("method", ["auto", "pooled", "stratified"])
def test_later_calls_do_not_call_the_model(net, monkeypatch, method):
    """And give the same bits for inputs that were never seen."""
    calls = []
    call = sampler.DropoutSampler.call
    monkeypatch.setattr(sampler.DropoutSampler, "call", lambda self, *a: calls.append(1) or call(self, *a))
    keeping._KEPT.clear()
    for number in range(5):
        calls.clear()
        answer(net, X + number, method=method, budget=80)
    assert not calls
    again = answer(net, X / 2, method=method, budget=80)
    assert not calls and same(again, fresh(net, X / 2, method=method, budget=80)) and calls


def test_inputs_are_not_kept_alive(net):
    for _ in range(5):
        x = X.clone()
        answer(net, x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


def test_a_model_that_remembers_is_not_kept(count_censuses):
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.seen = nn.Linear(3, 2), []

        def forward(self, x):
            self.seen.append(x.sum().item() if not torch._C._functorch.is_batchedtensor(x) else 0.0)
            return F.dropout(self.linear(x), 0.2, self.training)

    model = Remembers().eval()
    first = answer(model)
    assert same(first, answer(model)) and len(count_censuses) == 2 and not model.seen


class Noisy(nn.Module):
    """Draws in evaluation what it does not draw in training: this is warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        out = F.dropout(self.linear(x), 0.3, self.training)
        return out if self.training else out + torch.rand_like(out)


def test_warnings_are_said_again(count_censuses):
    model = Noisy().eval()
    for _ in range(2):
        with pytest.warns(md.ModelWarning, match="draws random numbers"):
            answer(model, method="pooled")
    assert len(count_censuses) == 1


def test_models_are_not_kept_alive():
    model = Net().eval()
    answer(model)
    assert model in keeping._KEPT
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_threads_get_copies_of_their_own(net):
    expected = answer(net)
    found = []
    threads = [threading.Thread(target=lambda: found.append(answer(net))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(same(expected, one) for one in found)


def test_functions_and_bound_methods_are_kept_too(net, count_censuses):
    def call(x):
        return net(x)

    for model in (call, net.forward):
        count_censuses.clear()
        assert same(answer(model), answer(model)) and len(count_censuses) <= 1
    net.p = 0.05
    assert same(answer(call), fresh(call))
    assert same(answer(functools.partial(call)), fresh(call))


# ------------------------------------------------------------------------------------------ Predictor


def test_a_predictor_is_estimate_with_its_settings(net):
    predictor = md.Predictor(net, budget=20, seed=3)
    for rows in (5, 2, 1):
        assert same(answer(net, X[:rows], seed=3), (lambda r: (r.mean, r.variance, r.mean_stderr))(predictor(X[:rows])))


def test_arrays_for_functions_that_map_over_batches(net):
    predictor = md.Predictor(net, budget=10)
    arrays = predictor.arrays(X.numpy())
    passes = arrays.pop("passes")
    assert passes.shape == (5,)
    assert set(arrays) == {"mean", "variance", "mean_stderr", "variance_stderr"}
    assert all(isinstance(a, np.ndarray) and a.shape == (5, 2) for a in arrays.values())
    both = md.Predictor(net, budget=10, transform=lambda out: {"a": out, "b": (out, out[:, 0])})
    assert {"mean.a", "mean.b.0", "mean.b.1"} < set(both.arrays(X))


def test_a_predictor_travels(net):
    predictor = md.Predictor(net, budget=12)
    predictor(X)
    sent = pickle.loads(pickle.dumps(predictor))
    assert np.array_equal(sent(X).mean, predictor(X).mean)
    assert repr(predictor) == "Predictor(Net, budget=12)"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"passes": 30}, "passes"),
        ({"budget": 30, "checkpoint": "a"}, "checkpoint"),
        ({}, "stop rule"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(net, settings, words):
    with pytest.raises(md.InputError, match=words):
        md.Predictor(net, **settings)
