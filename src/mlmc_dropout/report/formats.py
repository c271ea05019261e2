"""How numbers are written on the page and on the console: one set of rules, in typeset and in plain characters.

Whole numbers below ten million are written in full, other numbers to a few significant digits; what is very large or
very small gets an exponent.
"""

from __future__ import annotations

import math

__all__ = ["duration", "passes", "percent", "probability", "ratio", "short", "tick_label", "with_error"]

NOTHING_LEFT = 1e6  # passes of plain averaging per pass from which nothing but rounding is left to chance
_LARGEST, _SMALLEST = 1e7, 1e-3
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float, digits: int = 3, plain: bool = False) -> str:
    """A number for people.

    Args:
        value: The number; a dash stands for one that is not finite.
        digits: Significant digits; whole numbers are written in full.
        plain: For a console: a hyphen for the minus sign.

    Returns:
        The text.

    Examples:
        >>> short(41234.0), short(0.0001234), short(-1.5), short(1893.2, 2)
        ('41234', '1.23e−4', '−1.5', '1900')
        >>> short(-0.0001234, plain=True)
        '-1.23e-4'
    """
    if not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < _LARGEST:
        text = str(int(value))
    elif _SMALLEST <= abs(value) < _LARGEST:
        rounded = float(f"{value:.{digits}g}")
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
        text = f"{rounded:.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        head, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        text = f"{head}e{int(exponent)}"
    return text if plain else text.replace("-", "−")


def with_error(value: float, error: float) -> str:
    r"""A number with its standard error, to the digits that the error leaves; never broken into two lines.

    Args:
        value: The number.
        error: Its standard error, written to two digits.

    Returns:
        The text.

    Examples:
        >>> with_error(0.0047361, 0.0203), with_error(12.3456, 0.00012), with_error(1.5, float("nan"))
        ('0.005\xa0±\xa00.020', '12.34560\xa0±\xa00.00012', '1.5\xa0±\xa0–')
    """
    decimals = 1 - math.floor(math.log10(error)) if math.isfinite(error) and error > 0 else 99
    if not math.isfinite(value) or not 0 <= decimals <= 6:
        return f"{short(value, 4)}\u00a0±\u00a0{short(error, 2)}"
    return f"{value:.{decimals}f}\u00a0±\u00a0{error:.{decimals}f}".replace("-", "−")


def passes(value: float) -> str:
    """A number of passes, or of anything else that is counted: whole, and in full.

    Args:
        value: The number; fractions come from gradients, which cost parts of a pass.

    Returns:
        The text.

    Examples:
        >>> passes(1023.6), passes(0.4)
        ('1024', '0.4')
    """
    return short(float(round(value)) if math.isfinite(value) and abs(value) >= 1 else value)


def ratio(value: float, digits: int = 2, plain: bool = False) -> str:
    """A factor.

    Args:
        value: The factor.
        digits: Significant digits.
        plain: For a console, as for :func:`short`.

    Returns:
        The text.

    Examples:
        >>> ratio(2.187), ratio(0.5), ratio(1e30)
        ('2.2×', '0.5×', 'over 10⁶×')
        >>> ratio(float("nan"))  # not known
        '–'
    """
    if math.isnan(value):
        return "–"
    if value >= NOTHING_LEFT:
        return "over 1e6×" if plain else "over 10⁶×"
    return f"{short(value, digits, plain)}×"


def percent(share: float, digits: int = 2, plain: bool = False) -> str:
    r"""A share in percent.

    Args:
        share: The share; 1 is all.
        digits: Significant digits.
        plain: For a console.

    Returns:
        The text.

    Examples:
        >>> percent(0.1234), percent(0.99, plain=True)
        ('12\xa0%', '99 %')
    """
    gap = " " if plain else "\u00a0"  # not broken into two lines
    return f"{short(100 * share, digits, plain)}{gap}%"


def probability(value: float) -> str:
    r"""A probability; what is nearly 1 is not rounded to 1.

    Args:
        value: The probability.

    Returns:
        The text.

    Examples:
        >>> probability(0.98765), probability(0.99987), probability(1.0)
        ('0.988', 'over\xa00.999', '1')
    """
    return "over\u00a00.999" if 0.999 < value < 1 else short(value)


def duration(seconds: float | None) -> str:
    r"""A time.

    Args:
        seconds: Its length; None if it is not known.

    Returns:
        The text, with one decimal below ten seconds.

    Examples:
        >>> duration(1.26), duration(112.4), duration(None), duration(312.0), duration(9000), duration(2e6)
        ('1.3\xa0s', '112\xa0s', '–', '5.2\xa0minutes', '2.5\xa0hours', '23.1\xa0days')
    """
    if seconds is None:
        return "–"
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{short(seconds / length)}\u00a0{unit}"
    return f"{seconds:.1f}\u00a0s" if seconds < 10 else f"{seconds:.0f}\u00a0s"


def tick_label(value: float) -> str:
    """A number beside an axis, as narrow as possible.

    Args:
        value: The number.

    Returns:
        The text; powers of ten are written as such.

    Examples:
        >>> tick_label(0.25), tick_label(1e-5), tick_label(-2000.0), tick_label(3e-5), tick_label(131072.0)
        ('0.25', '10⁻⁵', '−2000', '3·10⁻⁵', '131072')
    """
    if value == 0 or _SMALLEST <= abs(value) < 1e5:
        return short(value, 4)
    if value == int(value) and abs(value) < _LARGEST and value != float(f"{value:.3g}"):
        return short(value)  # as 131072: in full, like its neighbours
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    factor = value / 10.0**exponent
    head = "" if abs(factor - 1) < 1e-6 else f"{short(factor)}·"
    return f"{head}10{str(exponent).translate(_SUPERSCRIPT)}"
