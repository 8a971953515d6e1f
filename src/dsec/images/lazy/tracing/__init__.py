"""What of images is read, and in which order (docs/prefetch.md)."""
