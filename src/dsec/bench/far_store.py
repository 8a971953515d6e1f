"""The far end of a link: a folder of objects served over HTTP, as an S3-compatible service serves a bucket that anybody
may read. Run as ``python -m dsec.bench.far_store DIRECTORY ADDRESS PORT``; says a line when it takes requests.

It answers GET and HEAD, with ranges, and hands bodies to the kernel by sendfile(2): on a host of few cores, whatever
the far end computes would be taken from the end that is measured.
"""

from __future__ import annotations

import http.server
import os
import re
import sys
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BUCKET = "far"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_LARGEST_SEND = 1 << 30


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], root: Path) -> None:
        self.root = root
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def _serve(self, *, with_body: bool) -> None:
        path = self._path()
        if path is None or not path.is_file():
            body = b"<Error><Code>NoSuchKey</Code></Error>"
            self.send_response(HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            start, end = self._range(status.st_size)
            self._head(status, start, end)
            if with_body:
                self.wfile.flush()
                self._send(file.fileno(), start, end)

    def _path(self) -> Path | None:
        parts = unquote(urlsplit(self.path).path).split("/")
        if parts[:2] != ["", BUCKET] or ".." in parts:
            return None
        return self.server.root.joinpath(*parts[2:])

    def _range(self, size: int) -> tuple[int, int]:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found is None or int(found[1]) >= size:
            return 0, size
        return int(found[1]), min(size, int(found[2]) + 1) if found[2] else size

    def _head(self, status: os.stat_result, start: int, end: int) -> None:
        is_part = end - start < status.st_size or "Range" in self.headers
        self.send_response(HTTPStatus.PARTIAL_CONTENT if is_part else HTTPStatus.OK)
        if is_part:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{status.st_size}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Last-Modified", formatdate(status.st_mtime, usegmt=True))
        self.send_header("ETag", f'"{status.st_ino:x}-{status.st_mtime_ns:x}"')
        self.end_headers()

    def _send(self, descriptor: int, start: int, end: int) -> None:
        while start < end:
            sent = os.sendfile(self.connection.fileno(), descriptor, start, min(end - start, _LARGEST_SEND))
            if not sent:
                self.close_connection = True  # The file became shorter; what was promised cannot be kept.
                return
            start += sent

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            pass  # Whoever asked went away.

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: every line would be work beside what is measured."""


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    directory, address, port = arguments
    server = _Server((address, int(port)), Path(directory))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=3600)


if __name__ == "__main__":
    main(sys.argv[1:])
