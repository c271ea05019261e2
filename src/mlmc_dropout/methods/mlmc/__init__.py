"""The paper's multilevel estimators.

``ladder``      fidelities T_0 < … < T_L
``coupling``    a replicate's estimates at each of them
``allocation``  level variances and a budget -> counts
``adaptive``    a ladder that grows
``estimator``   the method
``summary``     merged replicates -> estimates
``replicates``  the replicates themselves, on request
"""
