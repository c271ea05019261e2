"""Linear heads: masks that are averaged out in closed form, and those that need not even be drawn."""

import pytest
import torch
from torch import nn

from mlmc_dropout.methods.prepared_rows import PreparedRows
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.surrogates.linear import linearise
from mlmc_dropout.surrogates.linear_head import heads_of, held_sites, reduced_passes
from testing.oracles import source_of


def layers(*last: nn.Module, drop: type[nn.Module] = nn.Dropout) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), drop(0.2), nn.Linear(6, 5), nn.Tanh(), drop(0.3), *last)
    return model.double().eval()


def confirmed(model, rows=3, **options):
    source = source_of(model, torch.rand(rows, 2).double(), **options)
    slopes = linearise(source.sampler, source.program, source.batch)
    return source, heads_of(source.sampler, source.program, source.batch, slopes, seed=0)


@pytest.mark.parametrize("masks", ["independent", "shared"])
def test_a_head_at_its_mean_is_the_pass_less_what_its_masks_do(masks):
    source, heads = confirmed(layers(nn.Linear(5, 2)), masks=masks)
    (held,) = held_sites(source.program, heads)
    assert held == source.program.active[-1].index
    keys = torch.arange(8)
    drawn = source.sampler.draw_all(source.program, keys, source.batch.rows, 0)
    without = source.sampler.draw_all(source.program, keys, source.batch.rows, 0, held=(held,))
    assert without[held] is None
    assert torch.equal(without[0], drawn[0])  # the others are what they were
    found = reduced_passes(source.sampler, source.program, source.batch, drawn, heads)
    again = reduced_passes(source.sampler, source.program, source.batch, without, heads)
    for one, other in zip(found, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    not_heads = reduced_passes(source.sampler, source.program, source.batch, drawn, ())
    assert not torch.allclose(not_heads[0], again[0])


class TwoEnds(nn.Module):
    """One output is linear in the last masks, the other is not."""

    def __init__(self):
        super().__init__()
        self.body, self.end = layers(), nn.Linear(5, 1).double()

    def forward(self, x):
        h = self.body(x)
        return torch.cat([self.end(h), self.end(h).tanh()], dim=1)


@pytest.mark.parametrize(
    "model",
    [
        layers(nn.Linear(5, 1), drop=nn.AlphaDropout),
        nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1)).double().eval(),
        TwoEnds().eval(),
    ],
    ids=["not the identity at the mean", "no other masks", "not of all outputs"],
)
def test_heads_whose_masks_are_drawn(model):
    source, heads = confirmed(model)
    assert held_sites(source.program, heads) == ()


def test_whole_passes_need_all_masks():
    source, heads = confirmed(layers(nn.Linear(5, 1)))
    part = PreparedRows(slice(0, 3), heads)
    assert part.held(source) == (source.program.active[-1].index,)
    watched, heads = confirmed(layers(nn.Linear(5, 1)), questions=questions_for("values", ("above_0.3",)))
    assert PreparedRows(slice(0, 3), heads).held(watched) == ()
