"""EROFS files, read and laid out anew without mounting them."""
