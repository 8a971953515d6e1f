"""A hint over HTTP is what it is in process."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError, SandboxNotFoundError
from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.prefetch import PrefetchHint, PrefetchStep
from dsec.sdk.http import HttpService
from dsec.sdk.prefetch import prefetches_of

pytestmark = pytest.mark.anyio


async def test_a_node_is_told_what_comes_next(service: HttpService) -> None:
    prefetches = prefetches_of(service)
    steps = (PrefetchStep(images=("python", "tools")), PrefetchStep(images=("python",), command="pytest -q"))
    assert await prefetches.hint(PrefetchHint(owner="rollout", steps=steps)) == PrefetchProgress()
    with pytest.raises(SandboxNotFoundError):
        await prefetches.hint(PrefetchHint(sandbox_id="sbx-none", steps=steps))
    with pytest.raises(InvalidRequestError, match="nobody"):
        await prefetches.hint(PrefetchHint(steps=steps))
    with pytest.raises(InvalidRequestError):
        await prefetches.hint(PrefetchHint(owner="x" * 101))
