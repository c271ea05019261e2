"""The version, where nothing else has to be imported to read it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
