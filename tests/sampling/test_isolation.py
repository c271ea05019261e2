"""Passes run on a copy: nothing that can be reached from the model changes, and the copy is complete."""

from __future__ import annotations

import collections
import functools
import threading
import types

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout.sampling.isolation import isolate
from testing.patterns import PATTERNS
from testing.walk import differences, walk
from testing.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning", "ignore::mlmc_dropout.ModelWarning")

STORE: dict[str, Tensor] = {}


class Storing(nn.Module):
    """Keeps activations wherever a module can keep something."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.out = nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1)
        self.seen: list[Tensor] = []
        self.table: dict[str, Tensor] = {}
        self.queue: collections.deque[Tensor] = collections.deque(maxlen=3)
        self.names: set[int] = set()
        self.count, self.array = 0, np.zeros(2)
        self.cache = types.SimpleNamespace(last=None)
        self.plain = torch.zeros(1)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.first(x)))
        self.seen.append(h)
        self.table["h"] = h
        self.queue.append(h)
        self.count += 1
        self.names.add(self.count)
        self.array += 1
        self.cache.last = h
        self.plain += 1
        self.total += 1
        return self.out(h)


def _storing() -> tuple[nn.Module, dict[str, Tensor]]:
    model, store = Storing().eval(), {}
    model.drop.register_forward_hook(lambda module, args, out: store.__setitem__("drop", out))
    model.first.register_forward_hook(functools.partial(_note, store, "first"))
    model.out.register_forward_pre_hook(_note_in_global)
    return model, store


def _note(store: dict, name: str, module: nn.Module, args: tuple, out: Tensor) -> None:
    store[name] = out


def _note_in_global(module: nn.Module, args: tuple) -> None:
    STORE["out"] = args[0]


@pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])
def test_stores_of_models_and_hooks_stay_empty(method: str) -> None:
    model, store = _storing()
    before = walk((model, store, STORE))
    md.estimate(model, torch.ones(4, 3), budget=200, method=method)
    assert not differences(before, walk((model, store, STORE)))
    assert not store and not STORE and not model.seen and model.count == 0


def test_the_walk_notices_what_a_plain_pass_changes() -> None:
    """The negative control."""
    model, store = _storing()
    before = walk((model, store))
    with torch.no_grad():
        model(torch.ones(4, 3))
    assert len(differences(before, walk((model, store)))) > 8
    STORE.clear()


def test_nothing_changes_when_a_pass_fails() -> None:
    model, store = _storing()
    model.out = nn.Linear(7, 1)
    before = walk((model, store, STORE))
    with pytest.raises(RuntimeError):
        md.estimate(model, torch.ones(4, 3), budget=200)
    assert not differences(before, walk((model, store, STORE)))


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_are_left_as_they_were(name: str) -> None:
    model, x = ZOO[name].make()
    before = walk((model, x))
    md.estimate(model, x, budget=64, method="pooled")
    assert not differences(before, walk((model, x)))


@pytest.mark.parametrize("name", PATTERNS)
def test_models_of_all_patterns_are_left_as_they_were(name: str) -> None:
    pattern = PATTERNS[name]
    before = walk((pattern.model, pattern.modules, pattern.x))
    try:
        md.estimate(pattern.model, pattern.x, budget=64, method="pooled")
    except md.MLMCDropoutError:
        assert pattern.refused or name == "branch_of_activations"
    assert not differences(before, walk((pattern.model, pattern.modules, pattern.x)))


def test_references_inside_point_inside() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.me, model.parts, model.call = model, {"first": [model[0]]}, model[0].forward
    copy = isolate(model)
    assert copy.model is not model and copy.model.me is copy.model
    assert copy.model.parts["first"][0] is copy.model[0] is copy.model.call.__self__
    assert copy.model[0].weight is model[0].weight
    assert set(copy.modules.values()) == {"", "0"} and not copy.shared


def test_a_recursive_closure_is_copied_once() -> None:
    net = nn.Linear(2, 2)

    def run(x: Tensor, depth: int = 2) -> Tensor:
        return net(x) if not depth else run(x, depth - 1)

    copy = isolate(run).model
    cells = dict(zip(copy.__code__.co_freevars, copy.__closure__, strict=True))
    assert cells["run"].cell_contents is copy
    assert cells["net"].cell_contents is not net and cells["net"].cell_contents.weight is net.weight


def test_what_cannot_be_copied_is_shared_and_named() -> None:
    class Stubborn(dict):
        def copy(self) -> dict:
            raise RuntimeError("no")

    model = nn.Linear(2, 2)
    model.table, model.lock = Stubborn(a=1), threading.Lock()
    copy = isolate(model)
    assert copy.shared == ("table",) and copy.model.table is model.table and copy.model.lock is model.lock


def test_what_is_too_large_to_copy_is_shared_and_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model.data = [[index] for index in range(200_000)]
    assert isolate(model).model.data is model.data
    result = md.estimate(model, torch.ones(3, 2), budget=64)
    assert any("data" in note for note in result.notes)


def test_copying_a_large_model_is_quick() -> None:
    """A thousand modules: their containers must not be copied again and again."""
    import time

    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)) for _ in range(400)))
    started = time.perf_counter()
    isolate(model)
    assert time.perf_counter() - started < 2.0
