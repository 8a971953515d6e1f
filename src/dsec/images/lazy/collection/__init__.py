"""Delete what no image needs, here and in stores (docs/images-care.md)."""
