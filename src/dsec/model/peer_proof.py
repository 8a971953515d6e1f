"""How two nodes of one owner know each other over HTTP: the API's peers, and those that give each other chunks.

Both hold one secret. It never travels: the caller sends a random *challenge*, the server answers with a random of its
own and a proof that it knows the secret. Only then does the caller send anything else, with a credential that proves
the same of itself, in the place of a token:

    caller -> server   caller's id, challenge
    server -> caller   its id, answer, HMAC(secret, "server", ids, challenge, answer)
    caller -> server   every message with  peer.CALLER.CHALLENGE.ANSWER.HMAC(secret, "caller", ids, challenge, answer)

So a message goes to nobody who merely answers at a peer's address, and a sandbox token opens none of these routes. Half
of the server's answer is a MAC under a key that it draws when it starts: it has to remember no caller, and a credential
ends with it. What travels is not encrypted: across networks that others can read or change, nodes need TLS or a private
network beneath, as their API does.

Sources: RFC 2104 (HMAC); ISO/IEC 9798-4, mutual authentication by a keyed check function.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable

from dsec.base.errors import InvalidRequestError, NodeUnavailableError, UnauthorizedError
from dsec.base.ids import is_node_id
from dsec.model.value import Value

PREFIX = "peer"
"""Begins a credential: no token of a sandbox API has this form."""
_RANDOM_BYTES = 16
_CONTEXT = b"dsec peer 1"


class Hello(Value, frozen=True):
    """The first message: who calls, and 16 random bytes as hexadecimal digits."""

    node: str
    challenge: str


class HelloAnswer(Value, frozen=True):
    """Who answers, 32 bytes that belong to this call, and the proof that it knows the secret; hexadecimal digits."""

    node: str
    answer: str
    proof: str


class PeerGate:
    """The server's side: whoever passes knows the secret.

    Args:
        node: this node's id.
        secret: what the nodes of the fleet share.
        random_bytes: source of randomness.
    """

    def __init__(self, node: str, secret: bytes, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._node = node
        self._secret = secret
        self._random_bytes = random_bytes
        self._own_key = random_bytes(32)

    def answer(self, hello: Hello) -> HelloAnswer:
        """Answer a caller, whoever it is: the proof is worth nothing to one that does not know the secret.

        Raises:
            InvalidRequestError: the message is malformed.
        """
        if not is_node_id(hello.node) or not _is_hexadecimal(hello.challenge, _RANDOM_BYTES):
            raise InvalidRequestError("a peer's first message names its node and 16 random bytes in hexadecimal")
        drawn = self._random_bytes(_RANDOM_BYTES)
        answer = (drawn + self._own(hello.node, hello.challenge, drawn)).hex()
        proof = _mac(self._secret, "server", hello.node, self._node, hello.challenge, answer)
        return HelloAnswer(node=self._node, answer=answer, proof=proof)

    def check(self, authorization: bytes) -> str:
        """Return which node calls.

        Raises:
            UnauthorizedError: the credential is none of ours, or from before this server started. Nothing was done.
        """
        credential = authorization.removeprefix(b"Bearer ").decode("latin1")
        prefix, caller, challenge, answer, mac = (*credential.split("."), "", "", "", "")[:5]
        expected = _mac(self._secret, "caller", caller, self._node, challenge, answer)
        if prefix == PREFIX and self._is_answer(caller, challenge, answer) and _same(mac, expected):
            return caller
        raise UnauthorizedError(
            "this is for the node's peers, and the caller did not prove to be one",
            resolution="give all nodes of the fleet the same secret (setting peer_token_file)",
        )

    def _is_answer(self, caller: str, challenge: str, answer: str) -> bool:
        if not _is_hexadecimal(answer, 2 * _RANDOM_BYTES):
            return False
        data = bytes.fromhex(answer)
        return hmac.compare_digest(data[_RANDOM_BYTES:], self._own(caller, challenge, data[:_RANDOM_BYTES]))

    def _own(self, caller: str, challenge: str, drawn: bytes) -> bytes:
        return bytes.fromhex(_mac(self._own_key, "own", caller, challenge, drawn.hex()))[:_RANDOM_BYTES]


class PeerCall:
    """The caller's side of one acquaintance.

    Args:
        node: this node's id.
        peer: the id that the settings give the other one.
        secret: what the nodes of the fleet share.
        random_bytes: source of randomness.

    Attributes:
        hello: the first message.
    """

    def __init__(self, node: str, peer: str, secret: bytes, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._node = node
        self._peer = peer
        self._secret = secret
        self.hello = Hello(node=node, challenge=random_bytes(_RANDOM_BYTES).hex())

    def credential(self, answer: HelloAnswer) -> str:
        """Return what goes with every further message in the place of a token, once the server has proved itself.

        Raises:
            NodeUnavailableError: it is another node, or does not know the secret; nothing secret was sent.
        """
        challenge = self.hello.challenge
        if answer.node != self._peer:
            raise NodeUnavailableError(
                f"the node {answer.node[:40]!r} answers where the settings have {self._peer}",
                resolution="correct the setting `peers`; `dsec node ls` at each node tells its id",
            )
        proof = _mac(self._secret, "server", self._node, self._peer, challenge, answer.answer)
        if not _is_hexadecimal(answer.answer, 2 * _RANDOM_BYTES) or not _same(answer.proof, proof):
            raise NodeUnavailableError(
                f"who answers for {self._peer} does not know the secret of the peers",
                resolution="give all nodes of the fleet the same secret (setting peer_token_file)",
            )
        mac = _mac(self._secret, "caller", self._node, self._peer, challenge, answer.answer)
        return f"{PREFIX}.{self._node}.{challenge}.{answer.answer}.{mac}"


def _mac(key: bytes, *parts: str) -> str:
    """Every part with its length before it, so that no two lists of parts look the same."""
    message = b"".join(b"%d:%b" % (len(data), data) for data in (_CONTEXT, *(part.encode() for part in parts)))
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return one.isascii() and hmac.compare_digest(one, other)


def _is_hexadecimal(text: str, count: int) -> bool:
    return len(text) == 2 * count and not set(text) - set("0123456789abcdef")
