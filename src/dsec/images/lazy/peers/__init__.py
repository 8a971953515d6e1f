"""Chunks from and for other nodes (docs/image-peers.md)."""
