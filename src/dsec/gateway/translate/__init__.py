"""Calls in one protocol answered by backends that speak another: messages over chat completions."""
