"""Say to a registry who we are: tokens that live for minutes, or name and password.

A registry answers 401 and names, in its challenge, who gives tokens for it. That party is shown our credentials for
*this* registry and gives a token for the actions that we name, on the repository that we name. Scopes are written here
and never taken from a challenge, which could ask for more than is needed. Tokens are kept until nine tenths of their
life are over, one for each scope, and asked for by one task while others wait.

Sources: the distribution project's "Token Authentication Specification" (GET) and "OAuth2 Token Authentication" (POST,
for tokens that buy others).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlencode

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import UnauthorizedError
from dsec.base.foreign_json import decode_foreign
from dsec.images.registry.challenge import Challenge, best_challenge
from dsec.images.registry.credentials import Credentials, find_credentials
from dsec.images.registry.http import Content, RegistryFailedError, RegistryHttp, Response
from dsec.images.registry.reference import Repository
from dsec.images.registry.retrying import RETRIED_STATUSES

_LEAST_LIFE_S = 60.0
"""What the specification gives a token that says nothing."""
_LONGEST_LIFE_S = 3600.0
_MAXIMUM_ANSWER_BYTES = 1 << 18
_ANY_HEADER = frozenset(map(chr, range(0x21, 0x7F)))


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done in a registry.

    Attributes:
        repository: in which repository.
        pushes: whether something is written.
        reads_also: a repository that a blob is taken over from; None: none.
    """

    repository: Repository
    pushes: bool = False
    reads_also: Repository | None = None

    @property
    def scopes(self) -> tuple[str, ...]:
        """As token services want it."""
        actions = "pull,push" if self.pushes else "pull"
        scopes = [f"repository:{self.repository.path}:{actions}"]
        if self.reads_also is not None:
            scopes.append(f"repository:{self.reads_also.path}:pull")
        return tuple(scopes)


class _Answer(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


class _Token(msgspec.Struct, frozen=True):
    value: str
    until_s: float


class Authorizer(Protocol):
    """Who fills in the ``Authorization`` header."""

    async def header(self, access: Access) -> str | None:
        """Return its value, as far as is known what the registry wants; None: nothing is to be shown."""

    async def learn(self, response: Response, access: Access, shown: str | None) -> bool:
        """Learn from a 401 that came although `shown` was; return whether asking again makes sense."""


class RegistryAuthorizer:
    """The authorizer of one registry. Used from one event loop."""

    def __init__(self, http: RegistryHttp, environment: Mapping[str, str] = os.environ) -> None:
        self._http = http
        self._environment = environment
        self._challenge: Challenge | None = None
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._lock = anyio.Lock()

    async def header(self, access: Access) -> str | None:
        """See `Authorizer`.

        Raises:
            UnauthorizedError: no token is given.
            RegistryFailedError: who gives tokens does not answer.
        """
        challenge = self._challenge
        if challenge is None:
            return None
        if challenge.scheme == "basic":
            known = await self._credentials(access)
            return None if known is None else known.basic
        async with self._lock:
            token = self._tokens.get(access.scopes)
            if token is None or token.until_s <= anyio.current_time():
                token = self._tokens[access.scopes] = await self._ask(challenge, access)
        return f"Bearer {token.value}"

    async def learn(self, response: Response, access: Access, shown: str | None) -> bool:
        """See `Authorizer`. A token that is refused is given up, so that the next try asks for another."""
        challenge = best_challenge(response.headers("www-authenticate"))
        if challenge is None:
            return False
        self._challenge = challenge
        token = self._tokens.get(access.scopes)
        if token is not None and shown == f"Bearer {token.value}":
            del self._tokens[access.scopes]
        return challenge.scheme == "bearer" or shown is None

    async def _credentials(self, access: Access) -> Credentials | None:
        return await anyio.to_thread.run_sync(find_credentials, access.repository, self._environment)

    async def _ask(self, challenge: Challenge, access: Access) -> _Token:
        self._http.check_target(challenge.realm)
        known = await self._credentials(access)
        service = [("service", challenge.service)] if challenge.service else []
        if known is not None and known.identity_token:
            form = [*service, ("grant_type", "refresh_token"), ("refresh_token", known.identity_token)]
            form += [("client_id", "dsec"), ("scope", " ".join(access.scopes))]
            return await self._exchange("POST", challenge.realm, None, urlencode(form).encode())
        query = urlencode([*service, *(("scope", scope) for scope in access.scopes)])
        separator = "&" if "?" in challenge.realm else "?"
        basic = None if known is None else known.basic
        return await self._exchange("GET", f"{challenge.realm}{separator}{query}", basic, None)

    async def _exchange(self, method: str, url: str, basic: str | None, form: Content) -> _Token:
        headers = {"Accept": "application/json"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        async with self._http.send_to_realm(method, url, headers=headers, authorization=basic, content=form) as answer:
            if answer.status in (400, 401, 403):
                raise UnauthorizedError(
                    f"{answer.where} gives no token for {self._http.host}",
                    detail=await answer.told(),
                    resolution=f"log in (podman login {self._http.host}), or see whether you may do this",
                )
            if answer.status != 200:
                is_final = answer.status not in RETRIED_STATUSES
                raise RegistryFailedError(
                    f"{answer.where} answered {answer.status}", is_final=is_final, retry_after_s=answer.retry_after_s()
                )
            return _token(await answer.read(_MAXIMUM_ANSWER_BYTES), answer.where)


def _token(data: bytes, where: str) -> _Token:
    try:
        answer = decode_foreign(data, _Answer)
    except msgspec.MsgspecError as error:
        raise RegistryFailedError(f"{where} gave no token", detail=str(error), is_final=True) from error
    value = answer.token or answer.access_token
    if not value or not _ANY_HEADER.issuperset(value):
        raise RegistryFailedError(f"{where} gave no token that can be shown", is_final=True)
    life_s = min(_LONGEST_LIFE_S, answer.expires_in or _LEAST_LIFE_S)
    return _Token(value, anyio.current_time() + 0.9 * life_s)
