"""The null service and the callers of the gateway's benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import BackendFailedError
from dsec.bench.gateway_contestants import null_service, our_gateway
from dsec.bench.gateway_load import Connection, delays_s, rate, request

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_calls_and_streams_are_counted_alike_directly_and_through_a_gateway(tmp_path: Path) -> None:
    async with null_service(tmp_path) as direct, our_gateway(tmp_path, direct.url) as gateway:
        for one in (direct, gateway):
            assert await rate(one.url, 2, 0.05) > 0
            seen = await delays_s(one.url, 3, 4, 0.001)
            assert len(seen) == 3 * 5
            assert min(seen) > 0


async def test_a_call_that_is_refused_is_no_measurement(tmp_path: Path) -> None:
    async with (
        null_service(tmp_path) as direct,
        our_gateway(tmp_path, direct.url) as gateway,
        Connection(gateway.url) as connection,
    ):
        with pytest.raises(BackendFailedError, match="404"):
            await connection.whole(request(gateway.url).replace(b'"model":"m"', b'"model":"n"'))
