"""From a host's layers to a store's chunks, and back."""
