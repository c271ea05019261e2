"""1 · A trained model -> stochastic passes with explicit masks, many at once, while the model stays unchanged.

``inputs``        inputs as rows; ``outputs`` as one matrix per pass
``streams``       all random streams of the library
``masks``         the name of a pass (seed, stream, replicate, index) -> its masks
``interception``  dropout, intercepted where torch dispatches it; ``randomness`` the same for kernels
``linear_maps``   linear maps whose result for a row does not depend on other rows
``isolation``     a copy of the model to run
``memory``        how much memory passes hold, and how many of them fit
``sites``         the dropout sites of a model, and a forward pass with explicit masks
``recording``     passes recorded or run for comparison; ``proof`` that our passes are the model's
``census``        a model -> its dropout sites, proved
``batching``      masks of many passes -> their outputs; ``tape`` and ``replay``: recorded kernels
``sampler``       names -> passes
``source``        the passes of one batch of inputs, for ``methods``
"""
