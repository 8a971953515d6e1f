"""Which errors an episode is tried again after by itself, and what is said meanwhile.

A model that fails is the recovery's business (`dsec.worker.episodes.recovery.escalation`): it was asked again with
longer waits before the loop stopped. Were its whole episode tried again as well, the waits would be multiplied, and a
person would hear after many minutes of an address that was misspelt.
"""

from __future__ import annotations

from dsec.base.errors import BackendFailedError, DsecError, PlatformError, UnknownOutcomeError
from dsec.episode.spec import EpisodeSpec
from dsec.episode.spec_check import MAXIMUM_REASON_BYTES
from dsec.worker.episodes.recovery.escalation import models_of
from dsec.worker.episodes.results import shortened


def is_worth_a_try(error: DsecError, spec: EpisodeSpec) -> bool:
    """Say whether an episode is tried again by itself. So it is when its node died under a command: the next life puts
    the workspace back, and waits for a verdict on what must not happen twice."""
    if isinstance(error, BackendFailedError) and models_of(spec):
        return False
    return isinstance(error, UnknownOutcomeError) or (isinstance(error, PlatformError) and error.retryable)


def is_tried_again(error: DsecError) -> str:
    """Return the words about an error after which something is tried again."""
    return shortened(f"{error.brief}; it is tried again", MAXIMUM_REASON_BYTES)
