"""Connections for the sync half: the keepers of dsec.sdk.keeping, living in the background loop."""

from __future__ import annotations

from pathlib import Path

from dsec.sdk import keeping
from dsec.sdk._sync.fleet import BlockingFleet
from dsec.sdk._sync.images import BlockingImages
from dsec.sdk._sync.service import BlockingService
from dsec.sdk._sync.state import BlockingState
from dsec.sdk.bridge import background, call


class BlockingKeeper:
    """One connection, opened on first use. The arguments are those of `dsec.sdk.connect.open_service`."""

    def __init__(
        self, *, url: str | None = None, token: str | None = None, state_dir: str | Path | None = None
    ) -> None:
        self._keeper = keeping.Keeper(url=url, token=token, state_dir=state_dir)

    def service(self) -> BlockingService:
        """Return the open service."""
        return BlockingService(call(self._keeper.service))

    def close(self) -> None:
        """Close the connection and return when all of it is gone. Idempotent."""
        call(self._keeper.aclose)


def shared_blocking_service() -> BlockingService:
    """Return the service that everything in this process shares when it names no other. It is closed at exit."""
    background.before_exit(_close_shared)
    return BlockingService(call(keeping.shared_service))


def state_of(service: BlockingService) -> BlockingState:
    """Return what keeps the state of a service's sandboxes; see `dsec.sdk.state.state_of`."""
    return BlockingState(keeping.state_of(service._service))


def fleet_of(service: BlockingService) -> BlockingFleet:
    """Return a service's node among its peers; see `dsec.sdk.fleet.fleet_of`."""
    return BlockingFleet(keeping.fleet_of(service._service))


def images_of(service: BlockingService) -> BlockingImages:
    """Return what brings and keeps the images of a service; see `dsec.sdk.images.images_of`."""
    return BlockingImages(keeping.images_of(service._service))


def _close_shared() -> None:
    call(keeping.close_shared_service)
