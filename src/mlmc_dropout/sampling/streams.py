"""All random streams of the library, in one place: two purposes with the same number would share their masks.

A pass is named by seed, stream, replicate and index (``masks``). Estimates use the streams 0, 1, 2, …, one for each
level with independent levels; everything else has a number far above.
"""

from __future__ import annotations

__all__ = ["COARSE", "CURVATURE", "EVALUATION", "EVALUATION_INPUTS", "EVALUATION_SCORES"]
__all__ += ["HEAD_CHECK", "LOCATION", "PASSES_SHOWN", "PILOT", "TRAINING_EVALUATION"]

HEAD_CHECK = 1 << 20  # passes that confirm an affine head
CURVATURE = 1 << 21  # masks at which gradients are taken
PILOT = 1 << 22  # passes of a pilot
TRAINING_EVALUATION = 0x657661  # passes that evaluate a network in training
EVALUATION = 1 << 23  # passes of evaluations, one stream per level from here on
EVALUATION_SCORES = (1 << 23) + (1 << 15)  # passes that sort the inputs of an evaluation into strata
EVALUATION_INPUTS = (1 << 23) + (1 << 16)  # which inputs a level of an evaluation takes, one stream per level
PASSES_SHOWN = 1 << 24  # single passes on a page
LOCATION = 1 << 25  # passes that tell where quantiles are to be looked for
COARSE = 1 << 26  # masks of the coarse level alone
