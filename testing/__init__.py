"""Models, oracles and studies that tests and benchmarks share; no part of the library."""
