"""Check images and mend them (docs/images-care.md)."""
