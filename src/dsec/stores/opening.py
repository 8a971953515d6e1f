"""From a URL to the object store that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dsec.base.errors import InvalidRequestError, StoreUnavailableError
from dsec.stores.objects import ObjectStore, check_prefix
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.objects_memory import MemoryObjectStore

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORMS = "give file:///absolute/path, s3://bucket/prefix, or memory: for tests"


def open_store(url: str, *, environment: Mapping[str, str] = os.environ) -> ObjectStore:
    """Open an object store. Nothing is asked of a service yet; the first call shows whether bucket and key are right.

    Args:
        url: ``file:///path``, ``s3://bucket/prefix`` or ``memory:``.
        environment: where the ``AWS_*`` variables are looked up.

    Raises:
        InvalidRequestError: the URL is malformed or names another kind of store.
        StoreUnavailableError: the folder cannot be made or read.
    """
    if any(ord(character) <= 32 for character in url):
        raise _refused(url, "it holds a space or a control character")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _refused(url, str(error)) from error
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise _refused(url.partition("?")[0], "it holds a query, a fragment or credentials")
    match parts.scheme:
        case "file":
            return FolderObjectStore(_folder(url, parts.netloc, parts.path))
        case "s3":
            # obstore is a large library, which only this driver needs.
            from dsec.stores.objects_s3 import S3ObjectStore

            return S3ObjectStore(
                _bucket(url, parts.netloc), check_prefix(parts.path.strip("/")), environment=environment
            )
        case "memory":
            return MemoryObjectStore()
    raise _refused(url, "its scheme is unknown" if parts.scheme else "it has no scheme")


def open_existing(url: str) -> ObjectStore:
    """Open an object store to read what it has, or to mend it; a folder that is not there is not made.

    An empty folder in place of one on a disk that is not mounted would answer that everything was deleted.

    Raises:
        InvalidRequestError: the URL is malformed or names another kind of store.
        StoreUnavailableError: the folder is not there, or cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise StoreUnavailableError(f"{url} is not there", resolution="see whether its disk is mounted")
    return open_store(url)


def _folder(url: str, host: str, path: str) -> Path:
    if host not in ("", "localhost"):
        raise _refused(url, f"it names the host {host!r}; a path begins after three slashes")
    if not path.startswith("/") or path == "/" or "\0" in unquote(path):
        raise _refused(url, "it names no absolute path")
    return Path(unquote(path))


def _bucket(url: str, name: str) -> str:
    if _BUCKET.fullmatch(name) is None:
        raise _refused(url, f"{name!r} is no name of a bucket")
    return name


def _refused(url: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{url!r} is no URL of an object store: {reason}", resolution=_FORMS)
