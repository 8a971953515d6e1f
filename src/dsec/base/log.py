"""Logs: structured events to stderr, quiet unless asked.

Data goes to stdout and logs to stderr, always. A module writes `log = structlog.get_logger(__name__)` and
`log.info("sandbox_created", sandbox_id=...)`: the event is a name, and what it is about are fields. Nothing is
configured at import; the program (the command line, the server) calls `configure` once.
"""

from __future__ import annotations

import enum
import logging
import sys
from typing import TextIO

import structlog


class LogFormat(enum.Enum):
    """How events are written."""

    CONSOLE = "console"
    JSON = "json"


def configure(*, level: str = "warning", format: LogFormat = LogFormat.CONSOLE, stream: TextIO | None = None) -> None:
    """Send events of at least `level` to stderr.

    Args:
        level: debug, info, warning or error. The default is quiet: only what somebody should look at.
        format: for people or for machines (one JSON object a line).
        stream: instead of stderr.
    """
    target = stream if stream is not None else sys.stderr
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *_renderers(format, colors=target.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: _Lines(target),
        cache_logger_on_first_use=False,
    )


class _Lines(structlog.PrintLogger):
    """Writes lines, and never fails: a log on a full disk, or without a reader, must not end what it tells of."""

    def msg(self, message: str) -> None:
        try:
            super().msg(message)
        except OSError:
            pass  # Nobody can be told.

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def _renderers(format: LogFormat, *, colors: bool) -> list[structlog.typing.Processor]:
    if format is LogFormat.JSON:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Plain tracebacks: the fancy ones show local variables, among them tokens and what guests sent.
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
