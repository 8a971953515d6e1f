"""Logs go to stderr, quietly, for people or machines."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator

import pytest
import structlog

from dsec.base.log import LogFormat, configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_only_what_matters_is_written_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud", sandbox_id="sbx-1")
    output = capsys.readouterr()
    assert output.out == ""
    assert "quiet" not in output.err
    assert "loud" in output.err
    assert "sbx-1" in output.err
    assert "\x1b" not in output.err


def test_json_is_one_object_a_line() -> None:
    stream = io.StringIO()
    configure(level="info", format=LogFormat.JSON, stream=stream)
    structlog.get_logger().info("created", sandbox_id="sbx-1", text="two\nlines")
    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger().exception("failed")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["sandbox_id"], first["level"]) == ("created", "sbx-1", "info")
    assert "timestamp" in first
    assert "ValueError: why" in second["exception"]


def test_a_traceback_does_not_show_local_variables() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    try:
        token = "secret-of-somebody"
        raise ValueError(len(token))
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError: 18" in stream.getvalue()
    assert "secret-of-somebody" not in stream.getvalue().replace('token = "secret-of-somebody"', "")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(KeyError):
        configure(level="loud")


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    with open("/dev/full", "w") as full:
        configure(level="debug", stream=full)
        for _ in range(3):
            structlog.get_logger().error("no_room", detail="x" * 10_000)
        # What could not be written waits in the stream, and would raise at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, full.fileno())
        os.close(nowhere)
