"""Errors whose HTTP status is not the usual one of their code."""

from __future__ import annotations

from dsec.base.errors import DsecError


class Refusal(Exception):  # noqa: N818 - it carries an error and an HTTP status of its own; it is not one.
    """An error whose HTTP status is not the usual one of its code."""

    def __init__(self, error: DsecError, status: int, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(error.brief)
        self.error = error
        self.status = status
        self.headers = headers
