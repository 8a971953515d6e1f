"""Chunks of one image on their way to many nodes: from the origin alone, or from each other."""
