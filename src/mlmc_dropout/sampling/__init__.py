"""1 · A trained model -> stochastic passes with given masks, many at once, while the model stays as it was.

``data``          inputs as rows, outputs as one matrix per pass
``masks``         a pass's name (seed, stream, replicate, pass) -> its masks
``interception``  dropout, caught where torch dispatches it; ``randomness`` the same for kernels
``isolation``     a copy of the model to run, ``watch`` its memory
``sites``         a forward pass with the masks of all its dropout sites given
``census``        a model -> its dropout sites, with proof
``passes``        masks of many passes -> their outputs; ``tape`` plays recorded kernels again
``sampler``       names -> passes
"""
