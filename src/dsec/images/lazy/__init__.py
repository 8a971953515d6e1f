"""Layers that are loaded when touched (docs/images-lazy.md)."""
