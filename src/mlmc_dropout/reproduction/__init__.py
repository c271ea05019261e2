"""Every figure and table of the paper (Pim & Pryer), with verdicts.

====================  =====================================================================
``runner``            ids and a profile -> folders with numbers, figures and verdicts
``h_headline``        the paper's headline: claim, settings, judgement, figure
``f1_… f4_, i1_… i4_``  the same for each figure and table
``cost_curves``       error against cost of all methods on four networks (H)
``curves, rates``     plain runs at a few fidelities (F1, I1, I2); rates in T (F2, I3)
``surface, plans``    S² over all allocations; real variances of some (F4, I4)
``separate_runs``     S² with a run of its own per allocation, as the authors have it (F4, I4)
``logit_model``       the four-parameter fit of F3
``statistics``        norms, fits, intervals
``verdict``           checks -> one of three conclusions
``evidence``          formulas and simulations behind what we say about the paper
``surrogates``        the trained networks
``work, storage``     resumable units of work; files
``figures``           one look for all
====================  =====================================================================

Masks are drawn afresh for every grid point (``masks="independent"``), as the authors' code does (commit 7c1a764). With
one mask for all points the 200 points would move together: the same expectations, but a norm over the
grid would scatter as if there were a single point.
"""

from __future__ import annotations

from mlmc_dropout.reproduction.runner import EXPERIMENTS, PROFILES, reproduce, summary_table
from mlmc_dropout.reproduction.verdict import Check, Outcome, Quantity, Table, Verdict

__all__ = [
    "EXPERIMENTS",
    "PROFILES",
    "Check",
    "Outcome",
    "Quantity",
    "Table",
    "Verdict",
    "reproduce",
    "summary_table",
]
