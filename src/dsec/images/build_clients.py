"""Lend the host's settings of apt, pip and npm to a build, without leaving them in the image.

Mirrors, proxies and certificate authorities belong to the host, not to the image. Files are bound read-only at one
directory for the duration of the build; everything else is an ``ARG`` with a default, which ``RUN`` sees as a variable
and which an image does not keep. A Dockerfile's own ``ARG`` or ``ENV`` of the same name wins, since it comes later.
Nothing is lent but what says how to reach a mirror: an index on the host's disk, for one, is not.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BOUND_AT = "/run/dsec-build"
"""Where the files are bound; what is left of the mount point is taken out of the image again."""

_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_AUTHORITY_VARIABLES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout")
_PIP_FILES = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_OTHER_VARIABLES = ("NPM_CONFIG_REGISTRY", "npm_config_registry", "GOPROXY", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_APT_KEYS = ("Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::Retries", "Acquire::ForceIPv4")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What is lent.

    Attributes:
        files: content of the files in the bound directory, by name.
        variables: variables of every RUN.
    """

    files: Mapping[str, bytes]
    variables: Mapping[str, str]

    def write(self, directory: Path) -> None:
        """Make the directory to bind."""
        directory.mkdir(mode=0o755)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)

    def arguments(self) -> tuple[str, ...]:
        """Return the Dockerfile line that makes the variables: one, since every line is a step of the build."""
        pairs = [f"{name}={_quote(value)}" for name, value in sorted(self.variables.items())]
        return (f"ARG {' '.join(pairs)}",) if pairs else ()


def host_settings(environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """Read the host's settings."""
    files: dict[str, bytes] = {}
    variables = {name: environment[name] for name in _OTHER_VARIABLES if name in environment}
    variables |= dict(_pip_variables(environment))
    apt = _apt_settings()
    if _AUTHORITIES.is_file():
        files["ca.crt"] = _AUTHORITIES.read_bytes()
        variables |= dict.fromkeys(_AUTHORITY_VARIABLES, f"{BOUND_AT}/ca.crt")
        apt.append(f'Acquire::https::CaInfo "{BOUND_AT}/ca.crt";')
    if apt:
        files["apt.conf"] = "\n".join(apt).encode() + b"\n"
        variables["APT_CONFIG"] = f"{BOUND_AT}/apt.conf"
    return ClientSettings(files=files, variables=variables)


def _pip_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pip's settings, those of its files first, so that the environment's replace them as in pip itself."""
    for path in _PIP_FILES:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(os.path.expanduser(path))
        except configparser.Error:
            continue  # pip itself will complain about it; a build need not fail of it.
        for section in ("global", "install"):
            for key in _PIP_KEYS:
                value = " ".join(parser.get(section, key, fallback="").split())
                yield from _reachable(f"PIP_{key.replace('-', '_').upper()}", value)
    for key in _PIP_KEYS:
        name = f"PIP_{key.replace('-', '_').upper()}"
        yield from _reachable(name, environment.get(name, ""))


def _reachable(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Leave out the words that point to the host's own disk."""
    kept = " ".join(word for word in value.split() if not word.startswith(("file:", "/")))
    if kept:
        yield name, kept


def _apt_settings() -> list[str]:
    if shutil.which("apt-config") is None:
        return []
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, errors="replace", check=False)
    lines = dumped.stdout.splitlines()
    return [line for line in lines if line.startswith(_APT_KEYS) and not line.endswith('"";') and "CaInfo" not in line]


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'
