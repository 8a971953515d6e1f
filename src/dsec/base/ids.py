"""Identifiers: short, typed by a prefix, sortable by nothing, safe in paths, cgroup names and host names.

An id is ``<prefix>-<body>`` with a body of lower-case letters and digits. A sandbox id names its node:
``sbx-<node>-<random>``, whether the node made it or a client for that node. Ids that people choose (as idempotency
keys) need only be well-formed, for example ``sbx-12345``: they name no node, unless they have that very form.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dsec.base.errors import InvalidRequestError

_ALPHABET = "0123456789abcdefghijkmnpqrstvwxyz"  # 33 symbols: no l, o, u.
NODE_ID_LENGTH = 5
NODES_OWN_LENGTH, CLIENTS_OWN_LENGTH = 10, 16
"""Symbols of a body. A node knows all its ids; clients do not know each other's, and must not meet by chance."""
_BODY = f"[{_ALPHABET}]{{{NODES_OWN_LENGTH}}}(?:[{_ALPHABET}]{{{CLIENTS_OWN_LENGTH - NODES_OWN_LENGTH}}})?"
_NAMES_NODE = re.compile(f"sbx-([{_ALPHABET}]{{{NODE_ID_LENGTH}}})-{_BODY}")
_NODE_ID = re.compile(f"[{_ALPHABET}]{{{NODE_ID_LENGTH}}}")
_SANDBOX_ID = re.compile(r"sbx-[a-z0-9]+(-[a-z0-9]+)*")
MAX_ID_LENGTH = 63
"""Longest id: it must fit a host name label (RFC 1123)."""

RandomBytes = Callable[[int], bytes]
"""A source of random bytes, such as `os.urandom`."""


def random_body(length: int, random_bytes: RandomBytes) -> str:
    """Return `length` symbols drawn from `random_bytes` (about 5 bits each)."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in random_bytes(length))


def new_id(prefix: str, random_bytes: RandomBytes, *, length: int = 10) -> str:
    """Return a fresh id such as ``prc-7k2m9x0qaz``."""
    return f"{prefix}-{random_body(length, random_bytes)}"


def new_sandbox_id(node: str, random_bytes: RandomBytes, *, length: int = NODES_OWN_LENGTH) -> str:
    """Return a fresh sandbox id that names its node."""
    return f"sbx-{node}-{random_body(length, random_bytes)}"


def is_node_id(text: str) -> bool:
    """Whether `text` is well-formed as the id of a node."""
    return _NODE_ID.fullmatch(text) is not None


def named_node(sandbox_id: str) -> str | None:
    """Return the node that a sandbox id names, or None: somebody chose it freely."""
    match = _NAMES_NODE.fullmatch(sandbox_id)
    return None if match is None else match[1]


def check_sandbox_id(value: str) -> str:
    """Return `value` if it is a well-formed sandbox id.

    Raises:
        InvalidRequestError: it is not.
    """
    if len(value) > MAX_ID_LENGTH or not _SANDBOX_ID.fullmatch(value):
        raise InvalidRequestError(
            f"{value[:80]!r} is not a sandbox id",
            resolution="use 'sbx-' followed by lower-case letters, digits and dashes, at most 63 characters",
        )
    return value
