"""Which driver a backend has, by what is configured."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from dsec.base.clock import Clock
from dsec.gateway.config import Service
from dsec.gateway.http_upstream import HttpUpstream, Secret
from dsec.gateway.recording import Recorder, RecordingUpstream
from dsec.gateway.replay import Recordings, ReplayUpstream
from dsec.gateway.upstream import Upstream
from dsec.routing.backend import BackendKind


class Upstreams:
    """The ways to backends.

    Args:
        directory: what relative paths start from.
        session: connections to those that are far.
        clock: for the times of recordings.
        recorder: what answers are recorded to; None: they are not.
    """

    def __init__(
        self, directory: Path, session: aiohttp.ClientSession, clock: Clock, recorder: Recorder | None
    ) -> None:
        self._directory = directory
        self._session = session
        self._clock = clock
        self._recorder = recorder
        self._recordings: dict[Path, Recordings] = {}

    def to(self, service: Service, secret: Secret | None) -> Upstream:
        """Return the way to a backend.

        Raises:
            NotFoundError: it repeats what was never recorded.
            StateCorruptedError: what was recorded cannot be read.
        """
        if service.kind is BackendKind.REPLAY:
            where = self._directory / service.url
            if where not in self._recordings:
                self._recordings[where] = Recordings(where)
            return ReplayUpstream(service, self._recordings[where], self._clock)
        upstream = HttpUpstream(service, secret, self._session)
        return upstream if self._recorder is None else RecordingUpstream(upstream, self._recorder)
