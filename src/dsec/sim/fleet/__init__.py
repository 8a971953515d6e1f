"""A fleet of nodes under schedulers that see it late."""
