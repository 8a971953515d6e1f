"""Where things of one instance stand on the host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InstancePaths:
    """Paths below the run directory of one instance; the directory is gone when the instance is."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config.json"

    @property
    def rootfs(self) -> Path:
        """Mount point while the runtime starts; for a runtime with its own kernel, as long as the instance lives."""
        return self.directory / "rootfs"

    @property
    def runtime_state(self) -> Path:
        """The OCI runtime's `--root`."""
        return self.directory / "oci"

    @property
    def runtime_config(self) -> Path:
        """The configuration that crun keeps for its later commands."""
        return self.runtime_state / self.directory.name / "config.json"

    @property
    def pid(self) -> Path:
        return self.directory / "pid"

    @property
    def record(self) -> Path:
        """What adoption needs to know (`InstanceRecord`)."""
        return self.directory / "instance.json"

    def process(self, process_id: str) -> Path:
        """Directory of a durable or terminal command."""
        return self.directory / "processes" / process_id
