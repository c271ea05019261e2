"""Models built with other people's packages."""
