"""What a user would do otherwise with an image at the far end of a link: load all of it, then run it.

Docker Engine and podman are given the image's docker archive by HTTP over the same link as everything else, through
their standard input, as ``curl URL | docker load`` does. The archive is what ``docker save`` writes, which compresses
nothing. Each is driven by its command line, in directories of its own, and forgets the image after each sample.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import ExternalCommandError
from dsec.base.units import MIB
from dsec.bench.docker import docker_engine, is_installed
from dsec.bench.far_store import BUCKET
from dsec.bench.sampling import timed
from dsec.bench.shaped import ShapedStore
from dsec.images.oci_export import export_image
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore

ARCHIVE = "image.tar"
TAG = "localhost/dsec-bench:latest"
_RUN = ("run", "--rm", "--network", "none")


def write_archive(images: LocalImageStore, name: str, store: ShapedStore, directory: Path) -> str | None:
    """Put an image's docker archive to the far end; return why not, where that cannot be. Blocks."""
    if shutil.which("skopeo") is None:
        return "skopeo, which makes the archive, is not installed"
    layout = directory / "layout"
    export_image(images, name, layout)
    target = store.directory / ARCHIVE
    target.unlink(missing_ok=True)
    _checked(("skopeo", "copy", "--quiet", f"oci:{layout}:latest", f"docker-archive:{target}:{TAG}"))
    remove_tree(layout)
    return None


@dataclass(frozen=True, slots=True)
class Loader:
    """A program that loads whole archives.

    Attributes:
        name: for the report.
        command: its command line, to which a subcommand is added.
        run_options: of its ``run``, beside those that all have.
    """

    name: str
    command: tuple[str, ...]
    run_options: tuple[str, ...] = ()

    def sample(self, store: ShapedStore, argv: Sequence[str]) -> float:
        """Load the archive over the link and run a command in it; return the seconds of both. Blocks."""
        with timed() as watch:
            self._load(store)
            _checked((*self.command, *_RUN, *self.run_options, TAG, *argv))
        _checked((*self.command, "rmi", "--force", TAG))
        return watch.seconds

    def _load(self, store: ShapedStore) -> None:
        argv = (*self.command, "load")
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stderr is not None
            try:
                with child.stdin as pipe:
                    for piece in _archive(store):
                        pipe.write(piece)
            except BrokenPipeError:
                pass  # It says below why it stopped.
            errors = child.stderr.read()
        if child.returncode:
            raise _failed(argv, errors)


def _archive(store: ShapedStore) -> Iterator[memoryview]:
    """Yield the archive as it comes over the link."""
    buffer = bytearray(MIB)
    with socket.create_connection((store.link.far, 80), timeout=60) as connection:
        connection.sendall(f"GET /{BUCKET}/{ARCHIVE} HTTP/1.1\r\nHost: far\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            while answer.readline().strip():
                pass
            while count := answer.readinto(buffer):
                yield memoryview(buffer)[:count]


def _checked(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise _failed(argv, done.stderr)


def _failed(argv: Sequence[str], errors: bytes) -> ExternalCommandError:
    return ExternalCommandError(
        f"{' '.join(argv)} failed",
        detail=errors[-500:].decode(errors="replace"),
        resolution="run the benchmark with --without-docker",
    )


@contextmanager
def docker(directory: Path) -> Iterator[Loader | str]:
    """Run a Docker Engine without an image; or say why there is none."""
    if not is_installed():
        yield "not installed"
        return
    try:
        context = docker_engine(directory / "docker", ())
        engine = context.__enter__()
    except ExternalCommandError as error:
        yield f"{error.brief}: {error.detail}"
        return
    try:
        yield Loader("docker load and run", engine.command)
    finally:
        context.__exit__(None, None, None)


@contextmanager
def podman(directory: Path) -> Iterator[Loader | str]:
    """Give podman directories of its own; or say why there is none."""
    if shutil.which("podman") is None:
        yield "not installed"
        return
    storage = directory / "podman"
    storage.mkdir()
    command = ["podman", "--root", str(storage / "root"), "--runroot", str(storage / "run"), "--tmpdir"]
    command += [str(storage / "tmp"), "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"]
    try:
        # It asks for more descriptors and processes than a host may let it have.
        yield Loader(
            "podman load and run", tuple(command), ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
        )
    finally:
        subprocess.run([*command, "system", "reset", "--force"], capture_output=True, check=False)
