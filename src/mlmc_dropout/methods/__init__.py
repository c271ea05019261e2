"""Estimators: passes -> mean, variance and their standard errors, one file per method.

``base``             the protocol: what a run needs to know of a method
``pooled``           plain MC dropout
``mlmc``             the paper's multilevel estimators
``states``           carried states: what merges, and can be saved
``designs``          statistics of stratified designs
``wide_designs``     the same of outputs too wide to be held; ``running``: sums of such passes
``prepared_rows``    what is computed once for some rows: linear heads, a companion
``design_length``    how many passes a design has
``paired_designs``   designs made ready for inputs, which the next two share
``stratified``       masks that drop every unit equally often
``control_variate``  the same with a surrogate of known moments beside every pass
``coarse_level``     passes beside an expansion that is sampled more often: ``coarse_rows`` its samples, ``coarse_fit``
                     what both levels give, ``coarse_errors`` of either; ``coarse_pilot``, ``coarse_time``: if it pays
``auto``             chooses among them from a pilot
``tails``            whether standard errors can be believed
``registry``         methods by name
"""
