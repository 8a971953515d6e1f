"""The far end of a link: a folder of objects served over HTTP, as an S3-compatible service serves a bucket that anybody
may use. Run as ``python -m dsec.bench.far_store DIRECTORY ADDRESS PORT``; says a line when it takes requests.

It knows what DSec's driver of such services asks (get, head, put, delete, list), and hands bodies to the kernel by
sendfile(2): on a host of few cores, whatever the far end computes would be taken from the end that is measured.
"""

from __future__ import annotations

import http.server
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "far"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_KEY = re.compile("<Key>(.*?)</Key>")
_LARGEST_SEND = 1 << 30
_CONTENTS = "<Contents><Key>%s</Key><LastModified>%s</LastModified><Size>%d</Size><ETag>%s</ETag></Contents>"
_LISTING = "<ListBucketResult><KeyCount>%d</KeyCount><IsTruncated>false</IsTruncated>%s</ListBucketResult>"


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], root: Path) -> None:
        self.root = root
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise the end of an answer may wait for the other side's delayed acknowledgement.
    disable_nagle_algorithm = True
    server: _Server

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self._path()
        if path is None or path.is_dir():
            self._say(HTTPStatus.BAD_REQUEST)
        elif path.exists() and self.headers.get("If-None-Match") == "*":
            self._say(HTTPStatus.PRECONDITION_FAILED)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _new_file_at(path) as file:
                file.write(body)
            self._say(HTTPStatus.OK, headers={"ETag": _tag(path.stat())})

    def do_POST(self) -> None:
        """Delete many, the only thing that is posted."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        keys = _KEY.findall(body)
        for key in keys:
            self._below(unescape(key)).unlink(missing_ok=True)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._say(HTTPStatus.OK, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _serve(self, *, with_body: bool) -> None:
        if urlsplit(self.path).query:
            self._list()
            return
        path = self._path()
        if path is None or not path.is_file():
            error = b"<Error><Code>NoSuchKey</Code></Error>"
            self._say(HTTPStatus.NOT_FOUND, error if with_body else b"")
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            start, end = self._range(status.st_size)
            self._head(status, start, end)
            if with_body:
                self.wfile.flush()
                self._send(file.fileno(), start, end)

    def _say(self, status: HTTPStatus, body: bytes = b"", *, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _list(self) -> None:
        """Answer ListObjectsV2: everything below a prefix, however much, in one answer."""
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        found = [path for path in sorted(self.server.root.rglob("*")) if path.is_file()]
        keys = [(str(path.relative_to(self.server.root)), path.stat()) for path in found]
        contents = "".join(
            _CONTENTS % (escape(key), _date(at), at.st_size, _tag(at)) for key, at in keys if key.startswith(prefix)
        )
        self._say(
            HTTPStatus.OK, (_LISTING % (len(keys), contents)).encode(), headers={"Content-Type": "application/xml"}
        )

    def _path(self) -> Path | None:
        bucket, _, key = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        return self._below(key) if bucket == BUCKET else None

    def _below(self, key: str) -> Path:
        path = self.server.root / key
        return path if ".." not in path.parts else self.server.root

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
        self.send_header("ETag", _tag(status))
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


def _tag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}"'


def _date(status: os.stat_result) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))


@contextmanager
def _new_file_at(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears whole."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        yield file
    Path(file.name).rename(path)


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    directory, address, port = arguments
    server = _Server((address, int(port)), Path(directory))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=3600)


if __name__ == "__main__":
    main(sys.argv[1:])
