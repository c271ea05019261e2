"""Random bits by loops that Numba compiles: what ``masks`` does in calls of torch, bit for bit.

Only ``compiled`` imports this module, because importing Numba takes longer than most runs. A loop computes the keys or
designs ``first .. last`` and the words or units ``start .. stop`` of each, so that threads can share the work.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["compile_all", "keep_bits", "place_designs"]

_BLOCK = 512  # words that are worked on together: they stay in the nearest cache
_U64 = np.uint64
_GAMMA = _U64(0x9E3779B97F4A7C15)
_FACTORS = (_U64(0xBF58476D1CE4E5B9), _U64(0x94D049BB133111EB))
_ONES, _HIGH = _U64(0x0101010101010101), _U64(0x8080808080808080)
_EXACT = 1 << 10  # numbers below this times 53 bits fit 64


def _compile(loop):  # type: ignore[no-untyped-def]
    """Compile at the first call; keep the machine code on disk where a place can be written to."""
    try:
        return njit(nogil=True, cache=True)(loop)
    except RuntimeError:  # no place to keep it
        return njit(nogil=True)(loop)


@njit(inline="always")
def _mix(z):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser."""
    z = (z ^ (z >> _U64(30))) * _FACTORS[0]
    z = (z ^ (z >> _U64(27))) * _FACTORS[1]
    return z ^ (z >> _U64(31))


@_compile
def keep_bits(first, last, start, stop, keys, steps, threshold, limit, undecided, out):  # type: ignore[no-untyped-def]
    """Bytes that are 1 where a random byte is at least the threshold, and at the threshold if 64 more bits say so.

    Args:
        first: First key of this share.
        last: Where the keys end.
        start: First word of this share.
        stop: Where the words end.
        keys: All keys, uint64.
        steps: What is added to a key for each of its words, uint64.
        threshold: The threshold, 0 to 256.
        limit: From where on the further 64 bits keep a unit.
        undecided: Whether further bits are asked at all.
        out: The words, uint64 (keys, words).
    """
    place, kept = np.empty(8 * _BLOCK, np.int64), np.empty(8 * _BLOCK, np.uint8)
    same = _ONES * _U64(threshold & 255)
    for k in range(first, last):
        for a in range(start, stop, _BLOCK):
            words = out[k, a : min(a + _BLOCK, stop)]
            for w in range(words.size):
                words[w] = _mix(keys[k] + steps[a + w])
            found = 0
            if undecided:
                for w in range(words.size):
                    differs = words[w] ^ same
                    if not (differs - _ONES) & ~differs & _HIGH:  # no byte equals the threshold
                        continue
                    for lane in range(8):
                        if (differs >> _U64(8 * lane)) & _U64(255) == _U64(0):
                            more = _mix(words[w] ^ (_U64(lane + 1) * _GAMMA))
                            place[found], kept[found] = 8 * w + lane, more >= limit
                            found += 1
            units = words.view(np.uint8)
            for i in range(units.size):
                units[i] = units[i] >= threshold
            for i in range(found):
                units[place[i]] = kept[i]


@_compile
def place_designs(  # type: ignore[no-untyped-def]
    first, last, start, stop, step_keys, chance_keys, steps, certain, limit, marked, out
):
    """Mark a random set of passes for every unit of a design, by Floyd's sampling without replacement.

    Args:
        first: First design of this share.
        last: Where the designs end.
        start: First unit of this share.
        stop: Where the units end.
        step_keys: Keys of the steps of every design, uint64 (steps, designs).
        chance_keys: Keys that decide whether a unit has one mark more, uint64.
        steps: What is added to a key for each unit, uint64.
        certain: Marks that every unit has.
        limit: Below which random words give one more.
        marked: The mark, 0 or 1; everything else gets the other number.
        out: The bytes, uint8 (designs, passes, units).
    """
    passes = out.shape[1]
    size = max(1, min(_BLOCK, stop - start))  # a share may be empty
    spot, more = np.empty(size, np.int64), np.empty(size, np.bool_)
    for d in range(first, last):
        for a in range(start, stop, size):
            block = out[d, :, a : min(a + size, stop)]
            units = block.shape[1]
            block[:] = 1 - marked
            for index in range(len(step_keys)):
                top = passes - len(step_keys) + index
                key, count = step_keys[index, d], top + 1
                for u in range(units):
                    drawn = _mix(key + steps[a + u]) >> _U64(11)
                    if count > _EXACT:
                        spot[u] = min(np.int64(np.float64(drawn) * 2.0**-53 * count), count - 1)
                    else:
                        spot[u] = np.int64((drawn * _U64(count)) >> _U64(53))
                if top < passes - certain:  # only the first step is a matter of chance
                    for u in range(units):
                        more[u] = _mix(chance_keys[d] + steps[a + u]) < limit
                    for u in range(units):
                        if more[u]:
                            block[spot[u], u] = marked
                    continue
                for u in range(units):
                    if block[spot[u], u] == marked:
                        block[top, u] = marked
                    else:
                        block[spot[u], u] = marked


def compile_all() -> None:
    """Call the loops once, on as little as possible, so that whatever can go wrong with compiling does."""
    key = np.zeros(1, np.uint64)
    keep_bits(0, 1, 0, 1, key, key, 1, _U64(0), True, np.empty((1, 1), np.uint64))
    place_designs(0, 1, 0, 1, key[:, None], key, key, 1, _U64(0), 0, np.empty((1, 1, 1), np.uint8))
