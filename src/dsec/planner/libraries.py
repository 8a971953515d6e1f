"""The libraries that planning needs beside the base package."""

from __future__ import annotations

from dsec.base.errors import CapabilityMissingError


def missing_library(error: ModuleNotFoundError) -> CapabilityMissingError:
    """Return the error for a library that is not installed, to be raised."""
    return CapabilityMissingError(
        "planning needs libraries that are not installed",
        detail=str(error),
        resolution="pip install 'dsec[planning]'",
    )
