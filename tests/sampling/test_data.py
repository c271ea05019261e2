"""Inputs of every kind become rows and constants, outputs of every kind one matrix; the rest is refused by name."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import mlmc_dropout as md
from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.sampling.inputs import Batch, Constant, batches_of
from mlmc_dropout.sampling.outputs import Structure, non_finite_message
from mlmc_dropout.sampling.signature import Signature
from testing.zoo import Lambda

N = 5
A = torch.arange(15.0).reshape(N, 3) / 10
B = torch.arange(10.0).reshape(N, 2) / 10
Pair = namedtuple("Pair", "left right")


def net(run: Callable[..., Any]) -> Lambda:
    """A module with dropout ``drop`` and a linear layer ``lin`` from 3 to 2; its forward pass is ``run``."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Lambda(run, drop=nn.Dropout(0.3), lin=nn.Linear(3, 2)).eval()


def sample(run: Callable[..., Any], x: Any, passes: int = 8, **options: Any) -> Any:
    return md.DropoutSampler(net(run), **options).sample(x, passes)


def plain(m: Any, a: Tensor) -> Tensor:
    """The reference: what every other way to hand over ``A`` has to give."""
    return m.lin(m.drop(a))


# ----------------------------------------------------------------------------------- nested inputs


@pytest.mark.parametrize(
    ("x", "run"),
    [
        ((A,), plain),
        (((A, B),), lambda m, pair: plain(m, pair[0]) + 0 * pair[1]),
        (([A, B],), lambda m, pair: plain(m, pair[0]) + 0 * pair[1]),
        (((A, None),), lambda m, pair: plain(m, pair[0] if pair[1] is None else pair[1])),
        (((A, (B, {"c": A})),), lambda m, pair: plain(m, pair[1][1]["c"])),
        (({"a": A, "b": B},), lambda m, inputs: plain(m, inputs["a"])),
        ((Pair(A, B),), lambda m, pair: plain(m, pair.left)),
        ({"pair": (A, B)}, lambda m, pair: plain(m, pair[0])),
        ({"a": A, "scale": 1.0, "name": "s", "on": True, "b": None}, lambda m, a, scale, name, on, b: plain(m, a)),
        ((A, torch.tensor(1.0)), lambda m, a, one: one * plain(m, a)),
        ((A, np.array(1.0, dtype="f4")), lambda m, a, one: one * plain(m, a)),
        ((A, [2, 3]), lambda m, a, sizes: plain(m, a)),
    ],
)
def test_nested_inputs_give_what_plain_ones_give(x: Any, run: Any) -> None:
    expected = sample(plain, A)
    assert torch.equal(sample(run, x), expected)
    assert torch.equal(sample(run, [x]), expected)  # the same as a batch of an iterable
    assert torch.equal(sample(run, x, memory_limit=600), expected)  # in parts
    assert expected.std(dim=0).min() > 0


def test_containers_keep_their_types() -> None:
    batch = Batch.of((Pair(A, [B]), {"k": (A, None)}))
    left, mapping = batch[1:3].args
    assert type(left) is Pair and type(left.right) is list and type(mapping["k"]) is tuple
    assert left.left.shape == (2, 3) and left.right[0].shape == (2, 2) and mapping["k"][1] is None
    assert [*batch.named] == ["0.0", "0.1.0", "1.k.0", "1.k.1"]
    assert all(value is other for value, other in zip(batch.values, batch.named.values(), strict=True))


def test_a_nested_input_through_an_estimate() -> None:
    options = {"method": "pooled", "budget": 64}
    nested = md.estimate(net(lambda m, pair: plain(m, pair[0]) * pair[1]), ((A, B),), **options)
    flat = md.estimate(net(lambda m, a, b: plain(m, a) * b), (A, B), **options)
    np.testing.assert_array_equal(nested.mean, flat.mean)
    np.testing.assert_array_equal(nested.variance, flat.variance)


# --------------------------------------------------------------------------------------- constants


@pytest.mark.parametrize("rows", [slice(0, 1), slice(0, 2), slice(3, 5)])
@pytest.mark.parametrize("constant", [A[:1], Constant(A[:1]), Constant(torch.eye(3)), Constant(torch.ones(N, 4))])
def test_constants_are_the_same_for_all_rows(constant: Any, rows: slice) -> None:
    expected = constant.value if isinstance(constant, Constant) else constant
    for batch in (Batch.of((A, constant)), Batch.of({"a": A, "c": constant}), Batch.of(([A, {"c": constant}],))):
        cut, value = batch[rows], batch[rows].values[1]
        assert cut.rows == rows.stop - rows.start and torch.equal(value, expected)
        assert cut.values[0].shape == (cut.rows, 3)
        assert cut[:1].values[1].shape == expected.shape  # also of a single row


def test_constants_are_shared_by_parts_and_copied_for_calls() -> None:
    """Replay knows inputs by their memory; a model may write to its inputs."""
    batch = Batch.of((A, Constant((B, torch.eye(3)))))
    assert batch[:2].values[2].data_ptr() == batch[2:].values[2].data_ptr()
    fresh = batch.map(torch.clone, batch.rows)
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(fresh.values, batch.values, strict=True))


def test_a_model_that_writes_on_a_constant_leaves_the_users_alone() -> None:
    shift = torch.zeros(1, 3)

    def run(m: Any, a: Tensor, shift: Tensor) -> Tensor:
        shift += 1
        return plain(m, a + shift)

    assert torch.equal(sample(run, (A, shift)), sample(plain, A + 1))
    assert torch.equal(shift, torch.zeros(1, 3))


@pytest.mark.parametrize("position", [torch.ones(1, 3), Constant(torch.ones(1, 3)), Constant(torch.ones(3))])
@pytest.mark.parametrize("rows", [1, 2, N])
def test_broadcast_inputs_for_any_number_of_rows(position: Any, rows: int) -> None:
    assert torch.equal(
        sample(lambda m, a, p: plain(m, a + p), (A[:rows], position), memory_limit=600), sample(plain, A[:rows] + 1)
    )


def test_a_lone_row_makes_everything_rows() -> None:
    batch = Batch.of((A[:1], torch.ones(1, 7)))
    assert batch.rows == 1 and not batch.constants
    assert batch.map(lambda t: t.repeat(3, 1), 3).values[1].shape == (3, 7)


@dataclass
class Graph:
    """Neither a tensor nor a mapping, but iterable and with keys, as graphs of torch_geometric are."""

    x: Tensor

    def keys(self) -> list[str]:
        """Names."""
        return ["x"]

    def __iter__(self) -> Any:
        return iter([("x", self.x)])


def test_any_object_can_be_a_constant() -> None:
    x = (torch.arange(N), Constant(Graph(A)))
    assert torch.equal(sample(lambda m, ids, graph: plain(m, graph.x[ids]), x), sample(plain, A))


# ------------------------------------------------------------------------------ inputs of other kinds


BIG_ENDIAN = A.numpy().astype(">f4")
READ_ONLY = A.numpy().copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "x",
    [
        BIG_ENDIAN,
        READ_ONLY,
        A.double().numpy(),
        A.numpy().astype(np.longdouble),
        A.numpy()[::-1][::-1],
        np.asfortranarray(A.numpy()),
        pd.DataFrame(A.numpy(), columns=list("abc")),
        pd.DataFrame({"a": A[:, 0].double().numpy(), "b": A[:, 1].numpy(), "c": A[:, 2].numpy()}),
    ],
    ids=["big-endian", "read-only", "float64", "long double", "reversed", "fortran", "frame", "mixed frame"],
)
def test_arrays_and_frames(x: Any) -> None:
    expected = sample(plain, A)
    assert sample(plain, x).allclose(expected, rtol=1e-6)
    assert sample(plain, [x]).allclose(expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.ones(3, np.float16), torch.float16),
        (np.ones(3, np.uint16), torch.int64),
        (np.ones(3, ">u4"), torch.int64),
        (np.ones(3, ">i8"), torch.int64),
        (np.ones(3, np.uint8), torch.uint8),
        (np.ones(3, bool), torch.bool),
        (pd.Series([1.0, 2.0, 3.0]), torch.float64),
    ],
)
def test_types_of_arrays(array: Any, dtype: torch.dtype) -> None:
    (value,) = Batch.of(array).values
    assert value.dtype == dtype and value.tolist() == np.asarray(array).tolist()
    if value.is_floating_point():
        assert Batch.of(array, None, torch.bfloat16).values[0].dtype == torch.bfloat16


class Samples(IterableDataset):
    """A stream of samples."""

    def __iter__(self) -> Any:
        return iter(A)


EDGES = torch.zeros(2, 8, dtype=torch.long)
JAGGED = torch.nested.nested_tensor([A[:2], A[2:]], layout=torch.jagged)
SPARSE = torch.eye(N).to_sparse()
ROW_IDS = ["torch.arange(N)", "[ids]"]


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        ((A, EDGES), ["x[1] (2, 8)", "[2, 5]", "md.Constant(tensor)", *ROW_IDS]),
        ({"nodes": A, "edge_index": EDGES}, ["x['edge_index'] (2, 8)", "md.Constant(tensor)", *ROW_IDS]),
        (((A, (B, A.mT)),), ["x[0][1][1] (3, 5)", *ROW_IDS]),
        ((A, torch.zeros(0, 3)), ["x[1] (0, 3)"]),
        (Graph(A), ["Graph", "md.Constant", *ROW_IDS]),
        ([Graph(A)], ["Graph", *ROW_IDS]),
        ((A, Graph(A)), ["x[1]", "Graph", *ROW_IDS]),
        ({"a": A, "drop": nn.Dropout()}, ["x['drop']", "Dropout", "md.Constant"]),
        (pack_sequence([A, A]), ["PackedSequence"]),
        ((A, pack_sequence([A, A])), ["x[1]", "PackedSequence"]),
        (SPARSE, ["sparse", ".to_dense()", "md.Constant"]),
        ((A, SPARSE), ["x[1]", "sparse", ".to_dense()"]),
        ({"adj": SPARSE.to_sparse_coo(), "a": A}, ["x['adj']", ".to_dense()"]),
        (JAGGED, ["nested", ".to_padded_tensor"]),
        (np.ma.masked_array(A.numpy(), A.numpy() > 1), ["masked", ".filled("]),
        (pd.DataFrame({"a": [1.0], "b": ["one"]}), ["column 'b'", "'one'", "encode"]),
        (Samples(), ["Samples", "DataLoader(dataset, batch_size="]),
        ("text", ["str", "tensor"]),
        (Constant(A), ["no rows"]),
        ((Constant(A), 2.0), ["no rows"]),
        ((None,), ["no rows"]),
        (((),), ["no rows"]),
        ([np.float32(1.0)], ["ambiguous"]),
        ((A, [1, 2, 3, 4, 5]), ["x[1]", "list of 5 values", "tensor", "md.Constant(values)"]),
        ({"a": A, "words": ("a", "b", "c", "d", "e")}, ["x['words']", "tuple of 5 values"]),
    ],
)
def test_inputs_that_are_refused_before_any_pass(x: Any, shown: list[str]) -> None:
    def run(m: Any, *args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("a pass was spent")

    with pytest.raises(InputError) as caught:
        md.estimate(net(run), x, budget=100)
    for part in shown:
        assert part in str(caught.value)


def test_lists_that_are_constants() -> None:
    weights = Constant([1.0, 2.0, 3.0, 4.0, 5.0])
    out = sample(lambda m, a, weights: plain(m, a) * sum(weights), (A, weights))
    assert torch.equal(out, sample(plain, A) * 15)


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        ((A, (B, A.masked_fill(A == 0.4, math.nan))), "row 8;"),
        ({"a": {"b": A.masked_fill(A > 1.1, math.nan)}}, "row 11;"),
        ((A, Constant(torch.tensor([[math.nan]]))), "constant x[1] contains NaN"),
        ((A, torch.full((1, 2), math.nan)), "constant x[1] contains NaN"),
        ({"a": A, "scale": torch.tensor(math.nan)}, "constant x['scale'] contains NaN"),
    ],
)
def test_nan_is_found_wherever_it_is(x: Any, shown: str) -> None:
    with pytest.raises(InputError) as caught:
        Batch.of(x).check_finite(7)
    assert shown in str(caught.value)


def test_finite_inputs_of_all_kinds_pass() -> None:
    Batch.of(
        (
            A,
            (B, None),
            Constant((SPARSE, JAGGED)),
            torch.ones(1, 2),
            torch.tensor(3),
            {"s": "s"},
            A.clone().fill_(math.inf),
        )
    ).check_finite()


# ------------------------------------------------------------------------------------------ loaders


class Labelled(nn.Module):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """A model that can use its labels."""
        return x


class Static(nn.Module):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Without self."""
        return x


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (nn.Sequential(nn.Linear(3, 1)), 1),
        (nn.Bilinear(3, 2, 1), 2),
        (Labelled(), 2),
        (Static(), 1),
        (Labelled().forward, 2),
        (lambda a, b, *, c=0: a, 2),
        (functools.partial(lambda a, b: a, b=1), 1),
        (functools.partial(lambda a, b: a, 1), 1),
        (lambda *a: a, None),
        (net(plain), None),
        (torch.sin, None),
        (3, None),
    ],
)
def test_positional_arguments(model: Any, count: int | None) -> None:
    assert Signature.of(model).positional == count


LABELS = torch.arange(N)


@pytest.mark.parametrize(
    ("item", "arity", "arguments"),
    [
        ((A, LABELS), 1, 1),
        ([A, LABELS], 1, 1),
        ([A, B, LABELS], 2, 2),
        ((A, LABELS), 2, 2),
        ((A, LABELS), 3, 2),
        ((A, LABELS), None, 2),
        (A, 1, 1),
        ([(A, B), LABELS], 1, 1),
        ((A, ["a"]), 1, 1),
    ],
)
def test_labels_of_loaders_are_left_out(item: Any, arity: int | None, arguments: int) -> None:
    takes = {None: lambda *a: a, 1: lambda a: a, 2: lambda a, b: a, 3: lambda a, b, c=0: a}[arity]
    (batch,) = batches_of([item], None, None, Signature.of(takes))
    assert len(batch.args) == arguments and batch.rows == N
    assert batch.values[0] is not None and torch.equal(batch.values[0], A)


def test_a_tuple_is_not_a_loader() -> None:
    with pytest.raises(InputError, match="3 positional inputs, but Static takes 1"):
        list(batches_of((A, LABELS, A), None, None, Signature.of(Static())))
    (batch,) = batches_of((A, LABELS), None, None, Signature.of(Labelled()))
    assert len(batch.args) == 2


def test_a_loader_with_labels() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(A, LABELS), batch_size=2)
    batches = list(batches_of(loader, None, None, Signature.of(model)))
    assert [batch.rows for batch in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([batch.args[0] for batch in batches]), A)
    assert all(len(batch.args) == 1 for batch in batches)
    result, expected = (md.estimate(model, x, method="pooled", budget=64) for x in (loader, A))
    np.testing.assert_allclose(result.mean, expected.mean, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------ outputs


class Cache:
    """An object in an output, as transformers' caches are."""


@dataclass
class Plain:
    logits: Tensor
    loss: Any = None
    cache: Any = None


class Named(NamedTuple):
    mean: Tensor
    cache: Any
    scale: Tensor


LOSS = torch.tensor(0.5)


def outputs(m: Any, a: Tensor) -> dict[str, Any]:
    """Outputs of many kinds, by name."""
    y = plain(m, a)
    return {
        "loss": {"loss": LOSS, "logits": y},
        "ordered": OrderedDict(loss=None, logits=y, cache=Cache(), text="a", number=1.5, flag=True),
        "empty parts": {"logits": y, "attentions": (), "nested": {"a": None, "b": (LOSS,)}},
        "no components": {"logits": y, "boxes": y[:, :0]},
        "dataclass": Plain(y, LOSS, Cache()),
        "tuple": (None, y, LOSS),
        "list": [y, [], Cache()],
        "named": Named(y, None, y[:, 0]),
        "nested": {"a": (LOSS, (y, None)), "b": y[:, :1]},
        "full tuple": (y, y[:, 0]),
    }


@pytest.mark.parametrize(
    ("name", "names", "skipped"),
    [
        ("loss", ["logits"], ("loss",)),
        ("ordered", ["logits"], ("cache", "text", "number", "flag")),
        ("empty parts", ["logits"], ("nested",)),
        ("no components", ["logits"], ("boxes",)),
        ("dataclass", ["logits"], ("loss", "cache")),
        ("tuple", ["1"], ("2",)),
        ("list", ["0"], ("2",)),
        ("named", ["mean", "scale"], ()),
        ("nested", ["a.1.0", "b"], ("a.0",)),
        ("full tuple", ["0", "1"], ()),
    ],
)
def test_outputs_without_rows_are_left_out(name: str, names: list[str], skipped: tuple[str, ...]) -> None:
    model = net(plain)
    output = outputs(model, A)[name]
    structure = Structure.of(output, N)
    assert [label for label, _ in structure.names()] == names
    assert Structure.skipped(output) == skipped
    assert Structure.from_json(structure.to_json()) == structure
    flat = structure.flatten(output)
    assert flat.shape == (N, structure.width) and torch.equal(flat[:, :2], model.lin(A))
    leaves = structure.leaves(output)
    assert [tuple(leaf.shape) for leaf in leaves] == [(N, *shape) for _, shape in structure.names()]
    rebuilt = structure.unflatten(flat.detach().numpy())
    assert type(rebuilt) is (dict if structure.kind == "dict" else tuple)
    assert Structure.of(tensors(rebuilt), N).width == structure.width
    samples = sample(lambda m, a: outputs(m, a)[name], A)
    assert torch.equal(first_of(samples), sample(plain, A))


def first_of(value: Any) -> Any:
    """The first leaf."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return first_of(value[0]) if isinstance(value, tuple) else value


def tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: tensors(part) for key, part in value.items()}
    return tuple(map(tensors, value)) if isinstance(value, tuple) else torch.as_tensor(value)


@pytest.mark.parametrize("name", ["loss", "dataclass", "tuple", "named", "nested"])
def test_estimates_of_such_outputs(name: str) -> None:
    result = md.estimate(net(lambda m, a: outputs(m, a)[name]), A, method="pooled", budget=64)
    expected = md.estimate(net(plain), A, method="pooled", budget=64)
    np.testing.assert_array_equal(first_of(result.mean), expected.mean)
    np.testing.assert_array_equal(first_of(result.variance), expected.variance)


@pytest.mark.parametrize("name", ["loss", "tuple", "nested"])
def test_results_with_such_outputs_can_be_saved(name: str, tmp_path: Any) -> None:
    result = md.estimate(net(lambda m, a: outputs(m, a)[name]), A, method="pooled", budget=64)
    result.save(tmp_path / "result.npz")
    loaded = md.load_result(tmp_path / "result.npz")
    assert loaded.structure == result.structure
    np.testing.assert_array_equal(first_of(loaded.mean), first_of(result.mean))


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (LOSS, ["shape ()", "5 input rows", "transform="]),
        (None, ["NoneType", "transform="]),
        (1.0, ["float", "transform="]),
        (Cache(), ["Cache", "transform="]),
        (torch.distributions.Normal(A, 1.0), ["Normal", "transform="]),
        ({}, ["holds no tensor", "nothing", "transform="]),
        ((None, LOSS), ["holds no tensor", "0, 1", "transform="]),
        ({"loss": LOSS, "cache": Cache()}, ["holds no tensor", "loss, cache", "transform="]),
        ({"logits": A, "states": torch.zeros(2, N)}, ["(2, 5)", "5 input rows", "'states'", "transform="]),
        ({"a": (A, {"b": A.mT})}, ["(3, 5)", "'a.1.b'", "transform="]),
        ((A, torch.zeros(0, 2)), ["(0, 2)", "'1'", "transform="]),
        (Plain(A.mT), ["(3, 5)", "'logits'", "transform="]),
        ({"u": A.to(torch.complex64)}, ["complex", "'u'", "real and imaginary"]),
        ({"u": A, "v": A.numpy()}, ["ndarray", "'v'", "transform="]),
        (A[:, :0], ["(5, 0)", "no components"]),
        ({"u": JAGGED}, ["nested", "'u'", "transform="]),
    ],
)
def test_outputs_that_are_refused(output: Any, shown: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        Structure.of(output, N)
    for part in shown:
        assert part in str(caught.value)


def test_a_part_that_goes_missing_is_named() -> None:
    structure = Structure.of({"u": A, "v": B}, N)
    with pytest.raises(ModelError, match="lacks v"):
        structure.flatten({"u": A, "v2": B})


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (lambda y: y.argmax(dim=1), torch.int64),
        (lambda y: y > 0.3, torch.float32),
        (lambda y: {"vote": y.argmax(dim=1), "y": y}, torch.float32),
        (lambda y: (y > 0.3, y.double()), torch.float64),
        (lambda y: (y > 0.3, y.argmax(dim=1)), torch.float32),
        (lambda y: (y > 0.3).to(torch.uint8), torch.uint8),
    ],
)
def test_votes_and_truth_values_have_moments(change: Any, dtype: torch.dtype) -> None:
    """Moments of 0/1 and of whole numbers are those of the same values as floats."""
    y = sample(plain, A, 64)
    expected = [Structure.of(change(p), N).flatten(change(p)).double() for p in y]
    assert Structure.of(change(y[0]), N).flatten(change(y[0])).dtype == dtype
    result = md.estimate(net(plain), A, transform=change, method="pooled", budget=64)
    mean = Structure.of(tensors(result.mean), N).flatten(tensors(result.mean))
    np.testing.assert_allclose(mean.double(), torch.stack(expected).mean(dim=0), rtol=1e-6, atol=1e-7)
    assert torch.stack(expected).std(dim=0).max() > 0


def test_sparse_outputs_are_made_dense() -> None:
    structure = Structure.of({"y": SPARSE}, N)
    assert structure.width == N and torch.equal(structure.flatten({"y": SPARSE}), torch.eye(N))


# -------------------------------------------------------------------------------- outputs not finite


INF = math.inf
STRUCTURE = Structure.of({"score": torch.zeros(4), "logits": torch.zeros(4, 2, 2)}, 4)


@pytest.mark.parametrize(
    ("value", "structure", "shown", "hidden"),
    [
        (-INF, None, ["infinite outputs (-inf)", "rows 12", "components 3", "transform=", "clamp", "softmax"], "NaN"),
        (INF, STRUCTURE, ["infinite outputs (inf)", "rows 12", "components logits[1, 0]"], "NaN"),
        (math.nan, STRUCTURE, ["NaN or infinite", "rows 12", "logits[1, 0]", "remove those rows"], "clamp"),
    ],
)
def test_what_is_said_of_values_that_are_not_finite(value: float, structure: Any, shown: Any, hidden: str) -> None:
    values = np.zeros((6, 4, 5))
    values[:, 2, 3] = value
    message = non_finite_message(values, 10, structure)
    assert all(part in message for part in shown) and hidden not in message


def test_both_infinities_are_named() -> None:
    values = np.array([[[INF, -INF, 0.0]]])
    assert "(-inf and inf)" in non_finite_message(values) and "components 0, 1;" in non_finite_message(values)


def test_a_function_that_makes_the_model_is_to_be_called() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5))

    with pytest.raises(InputError, match=r"make takes no inputs; if it makes the model, call it: make\(\)"):
        md.estimate(make, torch.zeros(3, 1), budget=32)
