"""7 · From a question to its answer.

``driver``      the one place where estimates are run; ``progress`` tells the user how it goes
``rounds``      one batch of inputs on its way to the goal; ``assembly`` puts the batches together
``execution``   who runs the tasks: this process, processes of our own, any executor
``transport``   how model and inputs reach a ``worker``: once each (``delivery``: on a Dask cluster)
``checkpoint``  progress on disk, which belongs to one run only (``fingerprint``)
"""
