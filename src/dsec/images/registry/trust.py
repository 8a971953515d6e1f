"""How a registry is spoken to: over TLS, unless its host is this machine or its owner has marked it insecure.

Marks are where other container tools look for them, so that nobody says it twice: ``insecure = true`` in
registries.conf (`configuration`); certificates of private authorities as ``*.crt`` in
``HOST[:PORT]/`` below ``~/.config/containers/certs.d``, ``/etc/containers/certs.d`` or ``/etc/docker/certs.d``
(containers-certs.d(5)). A registry of this machine that has such a certificate is spoken to over TLS too.

What differs from those tools: *insecure* means plain HTTP, never TLS with a certificate that nobody vouches for, which
looks safer than it is.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.registry.configuration import is_insecure
from dsec.images.registry.reference import is_loopback

_CERTIFICATES = (Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d"))


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How one registry is spoken to.

    Attributes:
        is_plain: over HTTP.
        authorities: files of certificates that are trusted for it besides the system's.
    """

    is_plain: bool = False
    authorities: tuple[Path, ...] = ()

    @property
    def scheme(self) -> str:
        return "http" if self.is_plain else "https"

    def context(self) -> ssl.SSLContext:
        """Return what connections over TLS are verified by."""
        context = ssl.create_default_context()
        for file in self.authorities:
            try:
                context.load_verify_locations(file)
            except (OSError, ssl.SSLError) as error:
                raise InvalidRequestError(f"{file} holds no certificate that can be used", detail=str(error)) from error
        return context


def trust_of(
    host: str,
    environment: Mapping[str, str] = os.environ,
) -> Trust:
    """Say how a registry is spoken to.

    Raises:
        InvalidRequestError: a configuration file cannot be read.
    """
    places = (_home(environment) / ".config/containers/certs.d", *_CERTIFICATES)
    authorities = tuple(file for place in places for file in sorted((place / host).glob("*.crt")))
    is_plain = (is_loopback(host) and not authorities) or is_insecure(host, environment)
    return Trust(is_plain=is_plain, authorities=authorities)


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or "/nonexistent")
