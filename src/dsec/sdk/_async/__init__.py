"""The SDK, written once. `dsec.sdk._sync` is generated from this package by scripts/generate_sync.py."""
