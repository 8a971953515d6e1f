"""stargz-snapshotter as a reference: the other way to start a container whose image is not here, in wide use.

A containerd of the benchmark's own with the snapshotter as its plug-in, and a real registry (Distribution's) at the far
end of the link. The image is converted to eStargz, not optimised for a command. Converting takes minutes a gibibyte, so
that it is the base image alone. For each sample both programs begin with empty directories; the clock runs over
``ctr-remote images rpull`` and ``ctr-remote run``. Fetching in the background is off.

Debian has containerd, ``ctr-remote`` and the registry, and not ``containerd-stargz-grpc``: whoever wants this reference
puts it into the path.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import ExternalCommandError
from dsec.bench.sampling import timed
from dsec.bench.shaped import ShapedStore
from dsec.images.oci_export import export_image
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux.mounts import mounts_under, unmount

NAME = "stargz-snapshotter, the base image alone"
_PROGRAMS = ("containerd", "ctr-remote", "containerd-stargz-grpc", "docker-registry", "skopeo")
_REGISTRY_PORT = 5000
_START_S = 30.0
_CONTAINERD = """version = 2
root = "{0}/root"
state = "{0}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{0}/containerd.sock"
[ttrpc]
address = "{0}/ttrpc.sock"
[proxy_plugins.stargz]
type = "snapshot"
address = "{0}/stargz.sock"
"""
_SNAPSHOTTER = """no_prometheus = true
no_background_fetch = true
[[resolver.host."{0}".mirrors]]
host = "{0}"
insecure = true
"""
_REGISTRY = """version: 0.1
storage:
  filesystem:
    rootdirectory: {0}
http:
  addr: {1}
"""


@dataclass(frozen=True, slots=True)
class Stargz:
    """The reference, its image in the registry.

    Attributes:
        directory: of its own.
        host: the registry's host and port.
    """

    directory: Path
    host: str

    @property
    def image(self) -> str:
        return f"{self.host}/base:esgz"

    def sample(self, argv: Sequence[str]) -> float:
        """Pull and run from nothing; return the seconds. Blocks."""
        with self._containerd() as control:
            with timed() as watch:
                _checked((*control, "images", "rpull", "--plain-http", self.image))
                _checked((*control, "run", "--rm", "--snapshotter", "stargz", self.image, "first", *argv))
            return watch.seconds

    def convert(self, archive: Path) -> None:
        """Put an OCI archive into the registry, as eStargz."""
        with self._containerd() as control:
            _checked((*control, "images", "import", "--base-name", "localhost/base", str(archive)))
            options = ("--oci", "--no-optimize", "--estargz-compression-level", "1")
            _checked((*control, "images", "optimize", *options, "localhost/base:latest", self.image))
            _checked((*control, "images", "push", "--plain-http", self.image))

    @contextmanager
    def _containerd(self) -> Iterator[tuple[str, ...]]:
        """Run containerd and the snapshotter with nothing in them; yield the command line that drives them."""
        place = self.directory / "run"
        place.mkdir()
        (place / "containerd.toml").write_text(_CONTAINERD.format(place))
        (place / "stargz.toml").write_text(_SNAPSHOTTER.format(self.host))
        control = ("ctr-remote", "--address", f"{place}/containerd.sock")
        try:
            with ExitStack() as stack:
                paths = ("--address", f"{place}/stargz.sock", "--root", f"{place}/stargz")
                stack.enter_context(
                    _running(("containerd-stargz-grpc", *paths, "--config", f"{place}/stargz.toml"), place / "log")
                )
                _wait(lambda: (place / "stargz.sock").exists(), "containerd-stargz-grpc", place / "log")
                stack.enter_context(_running(("containerd", "--config", f"{place}/containerd.toml"), place / "log"))
                _wait(lambda: _succeeds((*control, "version")), "containerd", place / "log")
                yield control
        finally:
            for entry in reversed(list(mounts_under(place))):
                unmount(entry.target, detach=True)
            remove_tree(place)


@contextmanager
def stargz(directory: Path, store: ShapedStore, images: LocalImageStore, base: str) -> Iterator[Stargz | str]:
    """Convert an image and serve it at the far end until the block ends; or say why not. Blocks for a minute or two."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        yield f"{', '.join(missing)} not installed"
        return
    place, host = directory / "stargz", f"{store.link.far}:{_REGISTRY_PORT}"
    place.mkdir()
    (place / "registry.yml").write_text(_REGISTRY.format(place / "registry", host))
    serve = store.link.inside("docker-registry", "serve", str(place / "registry.yml"))
    with _running(serve, place / "registry.log"):
        made = Stargz(place, host)
        export_image(images, base, place / "layout")
        archive = place / "base.tar"
        _checked(("skopeo", "copy", "--quiet", f"oci:{place}/layout:latest", f"oci-archive:{archive}:latest"))
        made.convert(archive)
        yield made


@contextmanager
def _running(argv: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("ab") as file:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait(is_there: Callable[[], bool], program: str, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while not is_there():
        if time.monotonic() > deadline_s:
            raise ExternalCommandError(f"{program} does not start", detail=log.read_text(errors="replace")[-500:])
        time.sleep(0.02)


def _succeeds(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _checked(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        detail = done.stderr[-500:].decode(errors="replace")
        raise ExternalCommandError(f"{' '.join(argv)} failed", detail=detail, resolution="run it by hand")
