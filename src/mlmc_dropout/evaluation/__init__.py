"""Averages over a data set, by nested multilevel Monte Carlo.

``metrics``     what can be averaged; ``features`` of passes that metrics need
``levels``      samples of a level and the sums that are kept of them
``statistics``  levels -> estimates, variances, remaining bias; ``rates`` of differences; ``forecast`` of levels not run
``data``        a data set as rows in order, of which levels take random ones
``plan``        what to run next, and when to stop: ``choice`` of a ladder, ``counts``; ``single_terms`` for "unbiased"
``strata``      inputs that are alike; ``sweeps`` of all of them, where every input gets several passes
``tasks``       blocks of rows, for any executor; ``checkpoint`` saves what is done
``run``         rounds; ``evaluate`` is the front door, ``result`` what it gives back
"""
