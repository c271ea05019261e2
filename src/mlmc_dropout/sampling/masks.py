"""The name of a pass -> its dropout masks.

A pass is named by ``(seed, stream, replicate, index)``. Its masks depend on that name alone:
the name is hashed to a 64-bit key, the key and the position of a unit are hashed to random
bits, and the bits are compared with the dropout rate. Nothing is drawn from torch's global
generators and no state is kept between calls, so a pass has the same masks in whatever
chunk, process, machine or device it is computed.

The hash is SplitMix64 evaluated at an index (Steele, Lea & Flood, *Fast splittable
pseudorandom number generators*, OOPSLA 2014). One 64-bit word serves eight units, eight bits
each. A unit is dropped when its uniform number ``u`` satisfies ``u < p``; in the one case in
256 where eight bits cannot decide, a second word supplies 64 more, so that the rate is ``p``
and not a multiple of 1/256.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mlmc_dropout.sampling.compiled import as_unsigned, in_threads, loops

__all__ = [
    "bernoulli",
    "bernoulli_of_sites",
    "derive",
    "designs_of_sites",
    "latin_hypercube",
    "numbers",
    "pass_keys",
    "random_bytes",
    "stratified_numbers",
    "words",
]

_LANE_BITS = 3
_LANES = 1 << _LANE_BITS  # units per 64-bit word


def _signed(value: int) -> int:
    """The int64 with the bits of the unsigned 64-bit ``value``."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_GAMMA = _signed(_GOLDEN)
_SIGN = _signed(1 << 63)

_PLACED = 1 << 18  # units of designs that are placed together: what that takes stays in the caches
_MOST_SCRATCH = 1 << 22  # bytes
_FEW = 1 << 11  # words up to which calls of torch would cost more than the mixing
_COMPARED = 64  # passes of a design up to which every one of them is compared with the one that is chosen
_STRATUM = 0x73747261  # what a derived key is for: any constant that is no index of a site will do


_SCRATCH = threading.local()  # memory that is used again: new memory costs more than what is done in it


def _scratch(like: Tensor, size: int) -> Tensor:
    """Memory for so many numbers of the type of a tensor, whatever it contains, until the next call."""
    count = size * like.itemsize
    if like.device.type != "cpu" or count > _MOST_SCRATCH:
        return torch.empty(size, dtype=like.dtype, device=like.device)
    held: Tensor | None = getattr(_SCRATCH, "held", None)
    if held is None or len(held) < count or held.is_inference() != torch.is_inference_mode_enabled():
        held = _SCRATCH.held = torch.empty(count, dtype=torch.uint8)
    return held[:count].view(like.dtype)


def _mix_(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place. torch has no logical shift, hence the bit masks."""
    if z.numel() <= _FEW and z.device.type == "cpu" and z.is_contiguous():
        _mix_few(z.view(-1).numpy().view(np.uint64))
        return z
    shifted = _scratch(z, z.numel()).view(z.shape)
    for shift, factor in _MIX:
        torch.bitwise_right_shift(z, shift, out=shifted)
        z.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
        if factor != 1:
            z.mul_(_signed(factor))
    return z


def _mix_few(bits: NDArray[np.uint64]) -> None:
    """The same of few words."""
    for shift, factor in _MIX:
        bits ^= bits >> np.uint64(shift)
        if factor != 1:
            bits *= np.uint64(factor)


def _mix(z: int) -> int:
    """SplitMix64's finaliser of one unsigned number."""
    for shift, factor in _MIX:
        z = ((z ^ (z >> shift)) * factor) % (1 << 64)
    return z


def derive(keys: Tensor, tag: int | Tensor) -> Tensor:
    """Derive new keys, unrelated to the old ones.

    Args:
        keys: Keys, int64 of any shape.
        tag: What the new keys are for: a number, or a tensor that broadcasts with ``keys``.

    Returns:
        The new keys, of the broadcast shape.
    """
    if isinstance(tag, int):
        return _mix_(keys ^ _signed(_mix((tag + 1) * _GOLDEN % (1 << 64))))
    return _mix_(keys ^ _mix_((tag + 1) * _GAMMA))


def pass_keys(
    seed: int, stream: int, replicate: ArrayLike, index: ArrayLike, device: torch.device | str = "cpu"
) -> Tensor:
    """Keys of the passes ``(seed, stream, replicate, index)``.

    Args:
        seed: Seed of the run, any integer.
        stream: What the passes are for, see ``streams``.
        replicate: Number of the replicate; at least one axis.
        index: Number of the pass in its replicate; broadcasts with ``replicate``.
        device: Where the keys go; the CPU by default.

    Returns:
        The keys, int64 of the broadcast shape.

    Examples:
        >>> pass_keys(0, stream=0, replicate=0, index=[0, 1, 2]).shape
        torch.Size([3])
        >>> bool(pass_keys(0, 0, 0, 7) == pass_keys(0, 0, 0, 8))
        False
    """
    key = torch.tensor(_signed(seed % (1 << 64)), dtype=torch.int64)
    key = derive(derive(key, seed >> 64), stream)
    replicates = torch.from_numpy(np.atleast_1d(np.asarray(replicate, dtype=np.int64)))
    indices = torch.from_numpy(np.asarray(index, dtype=np.int64))
    return derive(derive(key, replicates), indices).to(device)


def words(keys: Tensor, count: int, first: int | Tensor = 0) -> Tensor:
    """Random 64-bit words of every key.

    Args:
        keys: Keys of any shape.
        count: Words per key.
        first: Index of the first word, 0 by default; or the indices of all words, int64 (count,).

    Returns:
        The words ``first``, …, ``first + count − 1``, or those at the indices, int64 (*keys.shape, count).
    """
    return _mix_(keys[..., None] + _steps(count, first, keys.device))


def _steps(count: int, first: int | Tensor, device: torch.device) -> Tensor:
    """What is added to a key for each of its words."""
    if isinstance(first, Tensor):
        return first.to(device) * _GAMMA
    return torch.arange(first, first + count, device=device).mul_(_GAMMA)


def _places(first_row: int | Tensor, per_row: int) -> int | Tensor:
    """Index of the first number of some rows, or of all their numbers where the rows are not consecutive."""
    if isinstance(first_row, Tensor):
        return (first_row[:, None] * per_row + torch.arange(per_row, device=first_row.device)).flatten()
    return first_row * per_row


def bernoulli(keys: Tensor, units: int, p: float, rows: int = 1, first_row: int | Tensor = 0) -> Tensor:
    """Keep bits: 1 with probability 1 − p.

    Row ``r`` is the same whether it is drawn alone or with others.

    Args:
        keys: One key per pass.
        units: Bits per row.
        p: The dropout rate p, in [0, 1].
        rows: Number of rows; 1 by default.
        first_row: Number of the first row, 0 by default; or the numbers of all rows, int64 (rows,).

    Returns:
        The bits, uint8 (len(keys), rows, units).

    Examples:
        >>> keys = pass_keys(0, 0, 0, range(4))
        >>> every = bernoulli(keys, units=5, p=0.3, rows=10)
        >>> bool((bernoulli(keys, 5, 0.3, rows=1, first_row=9) == every[:, 9:]).all())
        True
    """
    per_row = -(-units // _LANES)
    count, first = rows * per_row, _places(first_row, per_row)
    compiled = loops(len(keys) * count * _LANES, keys.device)
    keep = (
        _keep_bits(words(keys, count, first), p)
        if compiled is None
        else _compiled_bits(compiled, keys, count, first, p)
    )
    return keep.view(len(keys), rows, per_row * _LANES)[..., :units]


def _compiled_bits(compiled: ModuleType, keys: Tensor, count: int, first: int | Tensor, p: float) -> Tensor:
    """Keep bits of ``count`` words of every key, by compiled loops."""
    threshold, fraction = divmod(p * 256.0, 1.0)
    drawn = torch.empty(len(keys), count, dtype=torch.int64)
    steps = as_unsigned(_steps(count, first, keys.device))
    limit = np.uint64(int(fraction * 2.0**64))
    asked = (as_unsigned(keys), steps, int(threshold), limit, fraction > 0, drawn.numpy().view(np.uint64))
    in_threads(compiled.keep_bits, len(keys), count, drawn.nbytes, *asked)
    return drawn.view(torch.uint8)


def bernoulli_of_sites(keys: Tensor, p: float, sites: Sequence[tuple[int, int, int, int | Tensor]]) -> list[Tensor]:
    """Keep bits of several sites with one rate: the same as one by one, with fewer calls.

    Args:
        keys: One key per pass.
        p: The dropout rate p, in [0, 1].
        sites: Of every site what its keys are derived by, its units, rows and first row, see :func:`bernoulli`.

    Returns:
        Per site its bits, uint8 (len(keys), rows, units).
    """
    shapes = [(len(keys), rows, -(-units // _LANES)) for _, units, rows, _ in sites]  # of words
    sizes = [math.prod(shape) for shape in shapes]
    if loops(sum(sizes) * _LANES, keys.device) is not None:  # calls are cheap
        return [bernoulli(derive(keys, tag), units, p, rows, first) for tag, units, rows, first in sites]
    tags = torch.tensor([tag for tag, *_ in sites], device=keys.device)
    drawn = torch.empty(sum(sizes), dtype=torch.int64, device=keys.device)
    for own, part, shape, site in zip(derive(keys, tags[:, None]), drawn.split(sizes), shapes, sites, strict=True):
        _, rows, per_row = shape
        steps = _steps(rows * per_row, _places(site[3], per_row), keys.device)
        torch.add(own[:, None], steps, out=part.view(len(keys), len(steps)))
    keep = _keep_bits(_mix_(drawn), p).split([size * _LANES for size in sizes])
    units = [units for _, units, *_ in sites]
    return [
        bits.view(*shape[:2], shape[2] * _LANES)[..., :count]
        for bits, shape, count in zip(keep, shapes, units, strict=True)
    ]


def _keep_bits(drawn: Tensor, p: float) -> Tensor:
    """Bytes that are 1 with probability 1 − p, in the memory of random words."""
    threshold, fraction = divmod(p * 256.0, 1.0)  # exact: both are float64 operations without rounding
    keep = drawn.view(torch.uint8)
    if fraction:
        position, kept = _undecided(drawn, int(threshold), fraction)
        keep.ge_(int(threshold)).view(-1)[position] = kept
    elif p < 1:
        keep.ge_(int(threshold))
    else:
        keep.zero_()
    return keep


def random_bytes(keys: Tensor, units: int, rows: int = 1, first_row: int | Tensor = 0) -> Tensor:
    """Uniform bytes; those of a row are the same whether it is drawn alone or with others.

    Args:
        keys: Keys, one axis.
        units: Bytes per row.
        rows: Number of rows; 1 by default.
        first_row: Number of the first row, 0 by default; or the numbers of all rows, int64 (rows,).

    Returns:
        The bytes, uint8 (len(keys), rows, units).
    """
    per_row = -(-units // _LANES)
    drawn = words(keys, rows * per_row, _places(first_row, per_row))
    return drawn.view(torch.uint8).view(len(keys), rows, per_row * _LANES)[..., :units]


def _undecided(drawn: Tensor, threshold: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Where random bytes equal ``threshold``, and whether those units are kept: 64 more bits decide.

    The bits are a hash of the word and of the byte's place in it.
    """
    position = _find(drawn.view(torch.uint8).view(-1), threshold)
    lane = position & (_LANES - 1)
    more = _mix_(drawn.view(-1)[position >> _LANE_BITS].bitwise_xor_(lane.add_(1).mul_(_GAMMA)))
    limit = _signed(int(fraction * 2.0**64))
    return position, more.bitwise_xor_(_SIGN).ge(limit ^ _SIGN).to(torch.uint8)


def _find(values: Tensor, wanted: int) -> Tensor:
    """Positions of the bytes equal to ``wanted``, few among many; their number is a multiple of eight."""
    same = _scratch(values, len(values))
    torch.eq(values, wanted, out=same)  # into bytes: much faster than into bool
    if values.device.type != "cpu":
        return same.nonzero().squeeze(1)
    eights = same.numpy().view(np.uint64)
    groups = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[groups].view(np.bool_))
    return torch.from_numpy(groups[inside >> _LANE_BITS] * _LANES + (inside & (_LANES - 1)))


def latin_hypercube(
    keys: Tensor, passes: int, units: int, p: float, rows: int = 1, first_row: int | Tensor = 0
) -> Tensor:
    """Keep bits of whole designs, one key per design.

    Over the ``T = passes`` passes of a design a unit is dropped ``floor(pT)`` times, once more
    with probability ``pT - floor(pT)``, and all sets of passes of that size are equally likely.
    That is Latin hypercube sampling of the unit's uniform numbers: every single pass has the
    law of :func:`bernoulli`, while the number of drops hardly varies.

    Args:
        keys: One key per design.
        passes: Passes T per design.
        units: Bits per row.
        p: The dropout rate p, in [0, 1].
        rows: Number of rows; 1 by default.
        first_row: Number of the first row, 0 by default; or the numbers of all rows, int64 (rows,).

    Returns:
        The bits, uint8 (len(keys), passes, rows, units).

    Examples:
        >>> design = latin_hypercube(pass_keys(0, 0, 0, 0), passes=20, units=100, p=0.25)
        >>> design.sum(dim=1).unique().tolist()
        [15]
    """
    size = rows * units
    keys, places = derive(keys, _STRATUM), _places(first_row, units)
    compiled = loops(len(keys) * passes * size, keys.device)
    if compiled is not None:
        return _compiled_designs(compiled, keys, passes, size, places, p).view(len(keys), passes, rows, units)
    chosen = torch.zeros(len(keys), passes, size, dtype=torch.uint8, device=keys.device)
    step = max(1, _PLACED // max(1, len(keys)))
    for start in range(0, size, step):
        first = places[start : start + step] if isinstance(places, Tensor) else places + start
        _place(chosen[..., start : start + step], keys, min(p, 1.0 - p), first)
    if p <= 0.5:
        chosen.bitwise_xor_(1)
    return chosen.view(len(keys), passes, rows, units)


def _compiled_designs(
    compiled: ModuleType, keys: Tensor, passes: int, size: int, first: int | Tensor, p: float
) -> Tensor:
    """Keep bits of ``size`` units of every design, by compiled loops."""
    keep = torch.empty(len(keys), passes, size, dtype=torch.uint8)
    certain, chance = divmod(min(p, 1.0 - p) * passes, 1.0)
    tops = torch.arange(passes - int(certain) - (chance > 0), passes)
    limit = np.uint64(math.ceil(chance * 2.0**53) << 11)
    named = (derive(keys, tops[:, None]), derive(keys, passes), _steps(size, first, keys.device))
    asked = (*map(as_unsigned, named), int(certain), limit, int(p > 0.5), keep.numpy())
    in_threads(compiled.place_designs, len(keys), size, keep.numel(), *asked)
    return keep


def designs_of_sites(
    keys: Tensor, passes: int, p: float, sites: Sequence[tuple[int, int, int, int | Tensor]]
) -> list[Tensor]:
    """Keep bits of whole designs of several sites of one rate and size: the same as one by one, with fewer calls.

    Args:
        keys: One key per design.
        passes: Passes T per design.
        p: The dropout rate p, in [0, 1].
        sites: Of every site what its keys are derived by, its units, rows and first row, see :func:`latin_hypercube`;
            the last three are the same for all.

    Returns:
        Per site its bits, uint8 (len(keys) · passes, rows, units).
    """
    tags = torch.tensor([tag for tag, *_ in sites], device=keys.device)
    _, units, rows, first_row = sites[0]
    drawn = latin_hypercube(derive(keys, tags[:, None]).flatten(), passes, units, p, rows, first_row)
    return list(drawn.flatten(0, 1).tensor_split(len(sites)))


def _place(chosen: Tensor, keys: Tensor, rare: float, first: int | Tensor) -> None:
    """Mark the passes with the rarer outcome in ``chosen`` (designs, passes, units), whose first unit is given."""
    passes, size = chosen.shape[1:]
    certain, chance = divmod(rare * passes, 1.0)
    start = passes - int(certain) - (chance > 0)
    if start == passes - 1 and passes <= _COMPARED:
        _place_one(chosen, keys, chance, first)
        return
    for last in range(start, passes):
        # Floyd's sampling without replacement: a pass in 0 .. last, or ``last`` itself if taken.
        spot = _whole_number(words(derive(keys, last), size, first), last + 1)[:, None]
        if last > start:
            spot = torch.where(chosen.gather(1, spot).bool(), last, spot)
        # Only the first step is a matter of chance: it decides whether there is one drop more.
        if last < passes - int(certain):
            chosen.scatter_(1, spot, _below(words(derive(keys, passes), size, first), chance)[:, None])
        else:
            chosen.scatter_(1, spot, 1)


def _place_one(chosen: Tensor, keys: Tensor, chance: float, first: int | Tensor) -> None:
    """The same where there is at most one: bytes are compared with every pass, which is faster than to scatter them."""
    passes, size = chosen.shape[1:]
    spot = _whole_number(words(derive(keys, passes - 1), size, first), passes).to(torch.uint8)
    if chance:
        spot.add_(_below(words(derive(keys, passes), size, first), chance).bitwise_xor_(1), alpha=_COMPARED)
    torch.eq(spot[:, None], torch.arange(passes, dtype=torch.uint8, device=keys.device)[:, None], out=chosen)


def _whole_number(drawn: Tensor, count: int) -> Tensor:
    """Whole numbers 0 .. count − 1 from the leading 53 bits of random words, in place."""
    if count > 1 << 10:
        return (_as_uniform(drawn) * count).to(torch.int64).clamp_(max=count - 1)
    return drawn.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).mul_(count).bitwise_right_shift_(53)


def _below(drawn: Tensor, chance: float) -> Tensor:
    """Whether uniform numbers made of random words are below ``chance``, as bytes; the words are lost."""
    limit = _signed(math.ceil(chance * 2.0**53) << 11)
    below = torch.empty(drawn.shape, dtype=torch.uint8, device=drawn.device)
    return torch.lt(drawn.bitwise_xor_(_SIGN), limit ^ _SIGN, out=below)


def numbers(
    keys: Tensor, law: str, units: int, rows: int = 1, first_row: int | Tensor = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Independent uniform or normal numbers.

    Each row has the same numbers whether it is drawn alone or with others.

    Args:
        keys: One key per pass.
        law: "uniform" on [0, 1), or standard "normal".
        units: Numbers per row.
        rows: Number of rows; 1 by default.
        first_row: Number of the first row, 0 by default; or the numbers of all rows, int64 (rows,).
        dtype: ``torch.float64`` for double precision; any other type gives single precision.

    Returns:
        The numbers, (len(keys), rows, units).

    Examples:
        >>> numbers(pass_keys(0, 0, 0, range(4)), "uniform", units=3, rows=2).shape
        torch.Size([4, 2, 3])
    """
    uniform = _uniform(keys, rows * units, _places(first_row, units))
    return _with_law(uniform, law, dtype).view(len(keys), rows, units)


def stratified_numbers(
    keys: Tensor,
    law: str,
    passes: int,
    units: int,
    rows: int = 1,
    first_row: int | Tensor = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform or normal numbers of whole designs, one key per design.

    Latin hypercube sampling: over the passes of a design every number takes each of ``passes`` equally
    likely intervals once, in random order.

    Args:
        keys: One key per design.
        law: "uniform" on [0, 1), or standard "normal".
        passes: Passes per design.
        units: Numbers per row.
        rows: Number of rows; 1 by default.
        first_row: Number of the first row, 0 by default; or the numbers of all rows, int64 (rows,).
        dtype: ``torch.float64`` for double precision; any other type gives single precision.

    Returns:
        The numbers, (len(keys), passes, rows, units).
    """
    size, first = rows * units, _places(first_row, units)
    keys = derive(keys, _STRATUM)
    order = torch.stack([words(derive(keys, t), size, first) for t in range(passes)], dim=1).argsort(dim=1)
    inside = torch.stack([_uniform(derive(keys, passes + t), size, first) for t in range(passes)], dim=1)
    return _with_law((order + inside) / passes, law, dtype).view(len(keys), passes, rows, units)


def _with_law(uniform: Tensor, law: str, dtype: torch.dtype) -> Tensor:
    """From uniform float64 numbers; in single precision on a grid of 2⁻²⁴, as torch's own, so that none becomes 1."""
    bits = 53 if dtype == torch.float64 else 24
    grid = uniform.mul(2.0**bits).floor_().clamp_(max=2.0**bits - 1)
    if law == "normal":
        normal: Tensor = torch.special.ndtri(grid.add_(0.5).mul_(2.0**-bits))
        return normal.to(dtype if bits == 53 else torch.float32)
    return grid.mul_(2.0**-bits).to(dtype if bits == 53 else torch.float32)


def _uniform(keys: Tensor, count: int, first: int | Tensor) -> Tensor:
    """Uniform float64 in [0, 1) with 53 random bits."""
    return _as_uniform(words(keys, count, first))


def _as_uniform(drawn: Tensor) -> Tensor:
    """Uniform float64 in [0, 1) from the leading 53 bits of random words; the words are lost."""
    return drawn.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)
