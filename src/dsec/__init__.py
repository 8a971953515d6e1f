"""DSec: self-hosted sandboxes for training and evaluating agents."""

__version__ = "0.1.0"
