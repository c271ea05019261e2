"""Whether stratified masks or ``auto`` ever lose to plain Monte Carlo: budgets 30 to 1000, few rows, rough networks.

All methods get the same total cost. Copies of an input with independent masks are independent runs, so that variances
are seen directly; what preparing a method costs is charged as if there were no copies. ``auto`` decides anew from
several pilots, and every decision gets its share of the copies. What counts is the variance of an estimate summed over
inputs and outputs, over that of plain Monte Carlo, whose own is known from its moments. The error of the ratio is about
ten per cent where there is one input; what comes out above the limit is measured once more, with other seeds and twenty
times the copies, and that counts. ``--outside`` adds transformers with random weights, where that package is installed.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import common
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import Method, MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.paired_designs import BoundDesigns
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.states import merge_states
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.sampler import DropoutSampler, FallbackWarning
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.theory import variance_of_sample_variance
from testing.zoo import ZOO

BUDGETS = (30, 100, 300, 1000)
LIMIT = 1.1
AGAIN = 20  # times the copies, where the limit seems to be exceeded
METHODS: dict[str, MethodSpec] = {"stratified": Stratified(), "auto": Auto()}
ADVISED: dict[str, MethodSpec] = {"control-variate": ControlVariate()}  # for those who know what they do
MOMENTS = 50_000  # passes from which the variances of plain Monte Carlo are known


@dataclass(frozen=True, slots=True)
class Case:
    """A network and a few inputs."""

    name: str
    model: Any
    x: Any
    transform: Any = None


class Encoder(nn.Module):
    """A small transformer with a mean over the sequence and a linear head."""

    def __init__(self, outputs: int, rough: float, norm_first: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=norm_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, outputs)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(rough)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(1))


def seeded(make: Any, seed: int = 0) -> Any:
    """A network whose weights follow from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def rough_mlp(activation: type[nn.Module], rough: float, outputs: int, p: float, depth: int = 3) -> nn.Module:
    """Weights so large that the first order says little."""
    layers: list[nn.Module] = []
    for width in (4, *(24,) * (depth - 1)):
        layers += [nn.Linear(width, 24), activation(), nn.Dropout(p)]
    model = nn.Sequential(*layers, nn.Linear(24, outputs))
    for parameter in model.parameters():
        parameter.data.mul_(rough if parameter.dim() > 1 else 1.0)
    return model


def softmax(out: Tensor) -> Tensor:
    """Logits -> probabilities."""
    return out.softmax(-1)


def drawn(*shape: int) -> Tensor:
    """Inputs that are always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def cases() -> Iterator[Case]:
    """Ordinary networks, rough ones, softmax outputs; one row and a few."""
    for rows in (1, 4):
        for rough in (1.0, 3.0):
            encoder = seeded(lambda rough=rough: Encoder(3, rough))
            yield Case(f"encoder, weights × {rough:g}, {rows} rows", encoder, drawn(rows, 6, 16))
        encoder = seeded(lambda: Encoder(5, 3.0, norm_first=True))
        yield Case(f"encoder, weights × 3, softmax, {rows} rows", encoder, drawn(rows, 6, 16), softmax)
        for kind, rough, p in ((nn.Tanh, 5.0, 0.3), (nn.ReLU, 2.0, 0.3), (nn.SiLU, 1.0, 0.1), (nn.ReLU, 2.0, 0.5)):
            model = seeded(lambda kind=kind, rough=rough, p=p: rough_mlp(kind, rough, 2, p))
            yield Case(f"{kind.__name__}, weights × {rough:g}, p = {p}, {rows} rows", model, drawn(rows, 4))
        model = seeded(lambda: rough_mlp(nn.Tanh, 4.0, 5, 0.2))
        yield Case(f"Tanh network, weights × 4, softmax, {rows} rows", model, drawn(rows, 4), softmax)
    model = seeded(lambda: rough_mlp(nn.Tanh, 2.0, 40, 0.2))
    yield Case("Tanh network, 40 outputs, 2 rows", model, drawn(2, 4))
    yield from digits()
    for name in ("mlp", "residual_conv", "alpha", "encoder", "feature_alpha"):
        yield Case(f"zoo: {name}", *ZOO[name].make())


def digits() -> Iterator[Case]:
    """Probabilities of a trained classifier, some of them saturated."""
    data, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(data / 16).float()
    model = common.mlp(64, (64, 64), 10, 0.3, "relu")
    common.train(model, x, torch.from_numpy(labels), nn.functional.cross_entropy, 600)
    order = model(x).softmax(-1).amax(dim=1).argsort()
    yield Case("digits, softmax, the 4 least certain", model, x[order[:4]], softmax)
    yield Case("digits, softmax, 4 of all", model, x[::450][:4], softmax)


def outside() -> Iterator[Case]:
    """Models of transformers with large random weights."""
    import transformers as tf

    small = {"initializer_range": 0.3, "attn_implementation": "sdpa"}
    bert = tf.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32, **small)
    vit = tf.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8,
                       patch_size=4, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **small)  # fmt: skip
    words = torch.randint(0, 50, (4, 6), generator=torch.Generator().manual_seed(2))
    for rows in (1, 4):
        model = seeded(lambda: tf.DistilBertForSequenceClassification(bert))
        yield Case(f"DistilBERT, rough, {rows} rows", model, words[:rows], lambda out: out.logits)
        model = seeded(lambda: tf.ViTForImageClassification(vit))
        yield Case(f"ViT, rough, {rows} rows", model, drawn(rows, 3, 8, 8), lambda out: out.logits)


# ---------------------------------------------------------------------------------- measuring


def source_of(case: Case, copies: int = 1, seed: int = 0) -> Source:
    """Passes of a case, every input so many times."""
    sampler = DropoutSampler(case.model, transform=case.transform)
    batch = next(sampler.batches(case.x))
    many = batch.map(lambda t: t.repeat_interleave(copies, 0), batch.rows * copies)
    return Source(sampler, sampler.prepare(many), many, seed)


def run(plan: Method, single: Source, many: Source, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """Both estimates of every copy; what preparing costs is charged as without copies."""
    bound, alone = plan.bind(many), plan.bind(single)
    if isinstance(bound, BoundDesigns) and isinstance(alone, BoundDesigns):
        bound = replace(alone, parts=bound.parts)
    tasks, done = bound.extend({}, budget)
    state: Any = None
    for task in tasks:
        state = merge_states(state, bound.run(many, task))
    found = bound.summarise(state, done)
    assert found.cost <= budget
    return found.mean, found.variance


def spreads(values: list[np.ndarray], rows: int) -> float:
    """The variance over all copies of all runs, summed over inputs and outputs."""
    own = np.concatenate([v.reshape(rows, -1, v.shape[-1]) for v in values], axis=1)
    return float(own.var(axis=1, ddof=1).sum())


def plain_moments(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """μ2 and μ4 of a pass."""
    single = source_of(case, seed=99)
    pooled = Pooled().bind(single)
    tasks, _ = pooled.extend({}, MOMENTS)
    state: Any = None
    for task in tasks:
        state = merge_states(state, pooled.run(single, task))
    return state.passes.variance, state.passes.fourth


def label(plan: Method) -> str:
    """What a plan comes to."""
    if isinstance(plan, ControlVariate):
        return "second order" if plan.gradient_masks else "first order"
    if isinstance(plan, Stratified):
        return "heads" if plan.heads else "stratified"
    return "pooled"


def study(
    case: Case, method: MethodSpec, budget: int, copies: int, pilots: int, plain: Any, first: int = 0
) -> dict[str, Any]:
    """Variances of a method's estimates over plain Monte Carlo's."""
    single = source_of(case)
    decided = [method.choose(replace(single, seed=s), Goal(budget=budget)) for s in range(first, first + pilots)]
    means, variances = [], []
    many = source_of(case, max(2, copies // pilots))
    for seed, plan in enumerate(decided, start=first):
        mean, variance = run(plan, replace(single, seed=seed), replace(many, seed=seed), budget)
        means.append(mean)
        variances.append(variance)
    mu2, mu4 = plain
    of_mean, of_variance = mu2.sum() / budget, variance_of_sample_variance(budget, mu2, mu4).sum()
    return {
        "case": case.name,
        "budget": budget,
        "took": dict(Counter(map(label, decided))),
        "mean": float(spreads(means, len(mu2)) / of_mean),
        "variance": float(spreads(variances, len(mu2)) / of_variance),
    }


def line(row: dict[str, Any]) -> str:
    """A row for readers."""
    numbers = f"{row['budget']:5d} {row['method']:16s} {row['mean']:8.3f} {row['variance']:8.3f}"
    return f"{row['case']:44s} {numbers}  {row['took']}{' <---' if max(row['mean'], row['variance']) > LIMIT else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=200, help="independent runs per input")
    parser.add_argument("--pilots", type=int, default=10, help="times auto decides")
    parser.add_argument("--budgets", type=int, nargs="*", default=BUDGETS)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--advised", action="store_true", help="the control variate without auto, too")
    parser.add_argument("--outside", action="store_true")
    parser.add_argument("--draft", action="store_true", help="print only")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FallbackWarning)
    methods = METHODS | (ADVISED if options.advised else {})
    rows: list[dict[str, Any]] = []
    for case in (*cases(), *(outside() if options.outside else ())):
        if options.only not in case.name:
            continue
        plain = plain_moments(case)
        for budget in options.budgets:
            for name, method in methods.items():
                if budget < method.min_cost():
                    continue
                pilots = options.pilots if name == "auto" else 3
                row = {"method": name, **study(case, method, budget, options.copies, pilots, plain)}
                if max(row["mean"], row["variance"]) > LIMIT and name in METHODS:
                    print("again:", line(row))
                    row |= study(case, method, budget, AGAIN * options.copies, pilots, plain, first=pilots)
                rows.append(row)
                print(line(row), flush=True)
    worst = max((row for row in rows if row["method"] in METHODS), key=lambda r: max(r["mean"], r["variance"]))
    print("the worst:", worst)
    if not options.draft:
        common.save("never_worse", rows, copies=options.copies, pilots=options.pilots)
    return 0 if max(worst["mean"], worst["variance"]) <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
