"""When to stop: a budget of passes, a tolerance for either moment, or both."""
