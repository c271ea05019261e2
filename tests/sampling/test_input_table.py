"""The inputs that people have: each is understood, and gives what the plain tensor gives, or is refused by name."""

from __future__ import annotations

import copy
import decimal
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import mlmc_dropout as md
from mlmc_dropout import errors
from mlmc_dropout.sampling.dtypes import in_fitting_types
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.source import Source

N = np.arange(18).reshape(6, 3)  # whole numbers: every type below holds them exactly
X = torch.tensor(N, dtype=torch.float32)
LABELS = torch.arange(6)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


NET = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)))
TOKENS = seeded(lambda: nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 2)))


class Named(nn.Module):
    """Takes one input by name; returns what a function makes of the output."""

    def __init__(self, output: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        self.net, self.output = NET, output

    def forward(self, features: Tensor, scale: float = 1.0) -> Any:
        return self.output(self.net(features * scale))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = NET

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.net(a + b)


class Samples(Dataset[Any]):
    """Samples as dicts with a label, or as pairs."""

    def __init__(self, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return {"features": X[i], "label": i} if self.named else (X[i], i)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(X)


FRAME = pd.DataFrame(N, columns=["a", "b", "c"])

UNDERSTOOD: dict[str, Any] = {  # all are X, given to NET
    "float64 tensor": X.double(),
    "float16 tensor": X.half(),
    "bfloat16 tensor": X.bfloat16(),
    "int64 tensor": X.long(),
    "uint8 tensor": X.byte(),
    "uint16 tensor": X.to(torch.uint16),
    "tensor with gradients": X.clone().requires_grad_(),
    "parameter": nn.Parameter(X.clone()),
    "float64 array": N.astype(float),
    "float16 array": N.astype("f2"),
    "longdouble array": N.astype(np.longdouble),
    "big-endian floats": N.astype(">f8"),
    "big-endian integers": N.astype(">i4"),
    "int64 array": N,
    "uint64 array": N.astype("u8"),
    "objects that are numbers": N.astype(object),
    "decimals": [[decimal.Decimal(int(v)) for v in row] for row in N],
    "masked array without masked values": np.ma.masked_array(N, False),
    "read-only array": np.frombuffer(N.astype("f4").tobytes(), "f4").reshape(6, 3),
    "Fortran order": np.asfortranarray(N.astype("f4")),
    "negative strides": N[::-1].astype("f4")[::-1],
    "memoryview": memoryview(N.astype("f4")),
    "data frame": FRAME.astype(float),
    "data frame of integers": FRAME,
    "data frame of several types": FRAME.astype({"a": "f4", "b": "i2"}),
    "data frame with nullable types": FRAME.astype("Int64"),
    "data frame with another index": FRAME.set_axis(list("qwerty")),
    "list of lists": N.tolist(),
    "tuple of tuples of floats": tuple(map(tuple, N.astype(float).tolist())),
    "list of batches": [X[:2], X[2:]],
    "list of batches with labels": [(X[:2], LABELS[:2]), (X[2:], LABELS[2:])],
    "generator of float64 arrays": lambda: (N[i : i + 2].astype(float) for i in (0, 2, 4)),
    "dataset of pairs": Samples(named=False),
    "TensorDataset": TensorDataset(X, LABELS),
    "Subset": Subset(Samples(named=False), range(6)),
    "loader of pairs": DataLoader(TensorDataset(X, LABELS), batch_size=4),
    "loader of float64": DataLoader(TensorDataset(X.double(), LABELS), batch_size=4),
    "loader of dicts": DataLoader(Samples(named=True), batch_size=4),
    "dict of lists": {"input": N.tolist()},
}


def result(model: Any, x: Any, **options: Any) -> md.Result:
    return md.estimate(model, x() if isinstance(x, types.FunctionType) else x, method="pooled", budget=20, **options)


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_understood(name: str) -> None:
    found, expected = result(NET, UNDERSTOOD[name]), result(NET, X)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-4)
    assert expected.variance.min() > 0


@pytest.mark.parametrize(
    "x",
    [Samples(named=True), DataLoader(Samples(named=True), batch_size=4), {"features": X}, {"features": X.double()}],
    ids=["dataset", "loader", "dict", "float64"],
)
def test_named_inputs_are_understood_without_labels(x: Any) -> None:
    np.testing.assert_allclose(result(Named(), x).mean, result(NET, X).mean, rtol=1e-5)


@pytest.mark.parametrize("x", [N, N.astype("i2"), N.astype("u1"), N.tolist(), FRAME], ids=lambda x: type(x).__name__)
def test_token_ids_are_understood(x: Any) -> None:
    np.testing.assert_array_equal(result(TOKENS, x).mean, result(TOKENS, torch.tensor(N)).mean)


def test_functions_take_the_type_of_the_network_inside() -> None:
    expected = result(NET, X).mean
    np.testing.assert_allclose(result(lambda x: NET(x), N.astype(float)).mean, expected, rtol=1e-5)
    np.testing.assert_allclose(result(lambda x: NET(x), N).mean, expected, rtol=1e-5)
    wide = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2))).double()
    assert md.DropoutSampler(wide).sample(X, 2).dtype == torch.float64


class Careful(nn.Module):
    """Takes differences in float64, and only then goes to float32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = NET

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - 1e9).float())


def test_types_that_a_model_can_take_are_left_alone() -> None:
    """Negative control: float64 inputs of a model that uses their precision, integers that it indexes with."""
    np.testing.assert_allclose(result(Careful(), X.double() + 1e9).mean, result(NET, X).mean, rtol=1e-5)
    batches = list(in_fitting_types(iter([Batch.of(X.double()), Batch.of(X.double())]), Careful(), torch.float32))
    assert {batch.args[0].dtype for batch in batches} == {torch.float64}
    (cast,) = in_fitting_types(iter([Batch.of(X.double())]), NET, torch.float32)
    assert cast.args[0].dtype == torch.float32


def test_transforms_by_name() -> None:
    expected = result(NET, X, transform=lambda out: out.softmax(dim=-1))
    np.testing.assert_array_equal(result(NET, X, transform="softmax").mean, expected.mean)
    expected = result(NET, X, transform=torch.sigmoid)
    np.testing.assert_array_equal(result(NET, X, transform="sigmoid").mean, expected.mean)


with warnings.catch_warnings():  # a prototype, torch says
    warnings.simplefilter("ignore")
    MASKED = torch.masked.masked_tensor(X, X > 3)

REFUSED: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {  # model, x, options, parts of the message
    "strings": (NET, N.astype(str), {}, ["dtype <U", ".astype(float)"]),
    "objects": (NET, np.array([[1, "a", 2]], dtype=object), {}, ["'a' (str)", "encode"]),
    "dates": (NET, np.zeros((6, 3), "M8[s]"), {}, ["datetime64"]),
    "records": (NET, np.zeros(6, [("a", "f8"), ("b", "f8")]), {}, ["not numbers"]),
    "complex tensor": (NET, X.to(torch.complex64), {}, ["complex64", "view_as_real"]),
    "complex array": (NET, N.astype(complex), {}, ["complex", "view_as_real"]),
    "masked values": (NET, np.ma.masked_array(N, N > 3), {}, ["masked array", ".filled("]),
    "masked tensor": (NET, lambda: MASKED, {}, ["masked tensor", ".to_tensor("]),
    "no rows": (NET, X[:0], {}, ["0 rows"]),
    "no columns": (NET, X[:, :0], {}, ["x[0] (6, 0)", "column"]),
    "a number": (NET, np.float32(3), {}, ["float32", "not understood"]),
    "no axis": (NET, np.array(3.0), {}, ["no rows"]),
    "text column": (NET, FRAME.assign(b="x"), {}, ["column 'b'", "'x' (str)", "encode"]),
    "date column": (NET, FRAME.assign(b=pd.Timestamp(0)), {}, ["column 'b'", "datetime64", "drop"]),
    "category column": (NET, FRAME.assign(b=pd.Categorical(["x"] * 6)), {}, ["column 'b'", "encode"]),
    "missing values": (NET, FRAME.astype("Int64").replace(4, pd.NA), {}, ["NaN in row 1;"]),
    "list of text": (NET, ["good", "bad"], {}, ["are text", "encode", "tokenizer"]),
    "frame without columns": (NET, FRAME[[]], {}, ["without columns"]),
    "ragged lists": (NET, [[1, 2, 3], [1, 2]], {}, ["different lengths (2, 3)", "pad"]),
    "words in lists": (NET, [["a", 1, 2]], {}, ["x[0][0] is 'a' (str)"]),
    "None in lists": (NET, [[1.0, None, 2.0]], {}, ["x[0][1] is None"]),
    "list of numbers": (NET, [1.0, 2.0, 3.0], {}, ["ambiguous", "torch.tensor(x)[None]"]),
    "range": (NET, range(6), {}, ["ambiguous"]),
    "set": (NET, {1.0, 2.0}, {}, ["ambiguous"]),
    "empty list": (NET, [], {}, ["empty"]),
    "text": (NET, "x.npy", {}, ["str", "not understood"]),
    "None": (NET, None, {}, ["NoneType", "not understood"]),
    "loader class": (NET, DataLoader, {}, ["not understood"]),
    "labels in a tuple": (NET, (X, LABELS), {}, ["2 positional inputs", "takes 1 (input)", "x[0]"]),
    "an input missing": (Two(), X, {}, ["takes a, b", "'b'", "tuple"]),
    "unknown name": (Named(), {"feature": X}, {}, ["'feature'", "takes features, scale"]),
    "labels by name": (Named(), {"features": X, "label": LABELS}, {}, ["'label'", "leave out"]),
    "stream": (NET, Stream(), {}, ["Stream", "DataLoader(dataset"]),
    "empty dataset": (NET, TensorDataset(X[:0]), {}, ["0 samples"]),
    "dataset of objects": (NET, Subset([object()] * 3, range(3)), {}, ["cannot be put together", "collate_fn"]),
    "meta": (NET, X.to("meta"), {}, ["meta tensor", "no values"]),
    "sparse": (NET, X.to_sparse(), {}, ["sparse", ".to_dense()"]),
    "nested": (NET, torch.nested.as_nested_tensor([X[0], X[1]], layout=torch.jagged), {}, ["nested", "padded"]),
    "float tokens": (TOKENS, N.astype(float), {}, ["float32", "indices", ".astype(int)", "--dtype int64"]),
    "unknown transform": (NET, X, {"transform": "soft"}, ["'soft'", "softmax or sigmoid"]),
    "transform 3": (NET, X, {"transform": 3}, ["got 3", "function"]),
    "transform class": (NET, X, {"transform": nn.Softmax}, ["class Softmax", "instance"]),
    "model class": (Named, X, {}, ["class Named", "instance: Named(...)"]),
    "layer class": (nn.Linear, X, {}, ["class Linear", "instance"]),
    "state dict": (NET.state_dict(), X, {}, ["OrderedDict", "nn.Module"]),
    "file name": ("net.pt", X, {}, ["str", "nn.Module"]),
    "lazy model": (nn.Sequential(nn.LazyLinear(4), nn.Dropout()), X, {}, ["'0.weight'", "call the model once"]),
    "meta model": (nn.Linear(3, 1, device="meta"), X, {}, ["'weight'", "meta device", "load the weights"]),
    "single inputs": (NET, list(X), {}, ["(2,)", "torch.stack(x)"]),
    "None out": (Named(lambda out: None), X, {}, ["NoneType", "return tensors"]),
    "array out": (Named(lambda out: out.detach().numpy()), X, {}, ["ndarray", "return tensors"]),
    "nothing out": (Named(lambda out: ()), X, {}, ["tuple", "nothing"]),
    "zero width out": (Named(lambda out: out[:, :0]), X, {}, ["(2, 0)", "no components"]),
    "zero rows out": (Named(lambda out: out[:0]), X, {}, ["(0, 2)", "input rows"]),
    "meta out": (Named(lambda out: out.to("meta")), X, {}, ["meta tensor"]),
    "complex out": (Named(lambda out: out.to(torch.complex64)), X, {}, ["complex", "real and imaginary"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    model, x, options, parts = REFUSED[name]
    with pytest.raises(md.MLMCDropoutError) as caught:
        result(model, x, **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("model", "x", "options", "kind", "parts"),
    [
        (
            copy.deepcopy(NET),
            X[:, :2],
            {},
            RuntimeError,
            ["called on 6 rows: x[0] float32 (6, 2)", "before any dropout"],
        ),
        (copy.deepcopy(TOKENS), N + 99, {}, IndexError, ["called on 6 rows: x[0] int64 (6, 3)", "before any dropout"]),
        (Named(lambda out: {}[3]), X, {}, KeyError, ["called on 6 rows", "after the dropout site 'net.2'"]),
        (
            copy.deepcopy(NET),
            X,
            {"transform": lambda out: 1 / 0},
            ZeroDivisionError,
            ["raised by transform= on the output of 6 rows"],
        ),
    ],
    ids=["shape", "index", "own error", "transform"],
)
def test_errors_of_the_users_own_code_keep_their_type_and_gain_notes(model, x, options, kind, parts) -> None:
    with pytest.raises(kind) as caught:
        result(model, x, **options)
    assert caught.type is kind
    notes = "\n".join(caught.value.__notes__)
    for part in parts:
        assert notes.count(part) == 1, notes


def test_rows_and_passes_of_an_error_in_a_later_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = md.DropoutSampler(NET)
    batch = next(sampler.batches(X))
    source = Source(sampler, sampler.prepare(batch), batch, seed=0, first_row=100)

    def fail(*args: Any) -> None:
        raise OSError("enough")

    monkeypatch.setattr(sampler, "run_masks", fail)
    with pytest.raises(OSError, match="enough") as caught:
        source.passes(0, [0], range(7, 19))
    assert caught.value.__notes__ == ["in passes 7 to 18 of rows 100 to 105"]


@pytest.mark.parametrize(
    ("options", "shown"), [({"shuffle": True}, "shuffles"), ({"drop_last": True}, "drop_last=True")]
)
def test_loaders_that_lose_rows_or_their_order_are_warned_of(options: dict[str, Any], shown: str) -> None:
    with pytest.warns(md.ModelWarning, match=shown):
        result(NET, DataLoader(TensorDataset(X), batch_size=4, **options))


def test_every_error_can_be_imported_from_the_top() -> None:
    assert set(errors.__all__) <= set(md.__all__)
    assert all(getattr(md, name) is getattr(errors, name) for name in errors.__all__)
