"""The base of every value that is passed around, journalled and sent.

Values are frozen `msgspec` structs: one definition serves the code, the journal and the wire. Decoding refuses
unknown fields, so that a misspelt option is an error and never silently a default.
"""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value with named fields only."""
