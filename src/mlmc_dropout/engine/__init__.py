"""1 · A trained model -> stochastic passes with given masks, many at once, while the model stays as it was.

``data``          inputs as rows, outputs as one matrix per pass
``masks``         a pass's name (seed, stream, replicate, pass) -> its masks
``interception``  dropout, caught where torch dispatches it
``replica``       the model's twin, ``watch`` an eye on its forward pass
``sites``         a model -> its dropout sites, and a forward pass with given masks
``passes``        masks of many passes -> their outputs; ``tape`` plays recorded kernels again
``sampler``       names -> passes
"""
