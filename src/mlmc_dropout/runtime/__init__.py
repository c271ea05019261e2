"""7 · From a question to its answer.

``scheduler``   hands out tasks and merges what comes back; ``progress`` tells the user how it goes
``run``         one batch of inputs on its way to the goal; ``collector`` puts the batches together
``executors``   who runs the tasks: this process, ``processes`` of our own, any executor
``transport``   how model and inputs reach a ``worker``: once each (``delivery``: on a Dask cluster)
``checkpoint``  progress on disk, which belongs to one run only (``fingerprint``)
``rounding``    what the model's numbers can resolve
``signals``     being told to end; ``orphans``: a driver that is gone
"""
