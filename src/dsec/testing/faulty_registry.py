"""A registry that misbehaves: a proxy in front of a real one, which is told what to do to which request.

It runs in threads of its own, so that it serves clients of any event loop and of other processes.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ENDLESS_PIECE = b"[" * 65_536
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done to one request.

    Attributes:
        status: answer this without asking the registry; None: ask it.
        headers: added to the answer, in place of what it had.
        content: the answer's body, of which a range is given where one is asked for; None: the registry's.
        ignores_range: give the whole in place of a range.
        spoil: changes the body.
        cut_at: close the connection after so many bytes of the body.
        cut_first: close the connection in place of an answer, after the request was carried out.
        stall_at: send nothing more after so many bytes of the body.
        length: the ``Content-Length`` that is claimed.
        is_endless: send without end.
        delay_s: wait before the answer.
        drip_s: send a byte, wait for so long, and so on.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    ignores_range: bool = False
    spoil: Callable[[bytes], bytes] | None = None
    cut_at: int | None = None
    cut_first: bool = False
    stall_at: int | None = None
    length: int | None = None
    is_endless: bool = False
    delay_s: float = 0.0
    drip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body_bytes: int = 0


Rule = Callable[[Seen], Fault | None]
_NONE = Fault()


@dataclass(slots=True)
class FaultyRegistry:
    """A running proxy.

    Attributes:
        host: by which references name it.
        rule: says what to do to a request; None: nothing.
        seen: requests that came.
        sent_bytes: bytes of bodies that were sent.
    """

    host: str
    target: str
    rule: Rule = lambda seen: None
    seen: list[Seen] = field(default_factory=list)
    sent_bytes: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def fail_once(self, matches: Callable[[Seen], bool], *faults: Fault) -> None:
        """Do these to the next requests that match, one each."""
        rest = list(faults)
        lock = threading.Lock()

        def rule(seen: Seen) -> Fault | None:
            with lock:
                return rest.pop(0) if rest and matches(seen) else None

        self.rule = rule

    def blobs(self) -> list[Seen]:
        """Return the reads of blobs that came."""
        return [seen for seen in self.seen if is_blob(seen)]


def is_blob(seen: Seen) -> bool:
    """Tell whether a request reads a blob."""
    return seen.method == "GET" and "/blobs/sha256:" in seen.path


def is_manifest(seen: Seen) -> bool:
    """Tell whether a request reads a manifest."""
    return seen.method == "GET" and "/manifests/" in seen.path


@contextmanager
def run_faulty_registry(target: str, *, name: str = "127.0.0.1") -> Iterator[FaultyRegistry]:
    """Run a proxy to the registry `target` (host and port) until the context ends.

    Args:
        name: by which the proxy's host is named; what answers is loopback.
    """
    registry = FaultyRegistry("", target)

    class Handler(_Handler):
        proxy = registry

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry.host = f"{name}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            registry.stopped.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyRegistry

    def _handle(self) -> None:
        body = self._body()
        seen = Seen(
            self.command,
            self.path,
            {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers},
            len(body),
        )
        self.proxy.seen.append(seen)
        fault = self.proxy.rule(seen) or _NONE
        if fault.delay_s:
            self.proxy.stopped.wait(fault.delay_s)
        status, headers, content = self._answer(seen, body, fault)
        if fault.cut_first:
            self.close_connection = True
            return
        try:
            self._send(status, headers, content, fault)
        except OSError:
            self.close_connection = True  # The client has what it wanted, or gave up.

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the base class's names.

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, seen: Seen, body: bytes, fault: Fault) -> tuple[int, dict[str, str], bytes]:
        if fault.content is not None:
            return _ranged(fault, seen.headers.get("range"))
        if fault.status is not None:
            return fault.status, dict(fault.headers), b'{"errors":[{"code":"A_FAULT"}]}'
        connection = http.client.HTTPConnection(self.proxy.target, timeout=60)
        try:
            ignored = {"connection", *({"range"} if fault.ignores_range else ())}
            headers = {
                name: value for name, value in seen.headers.items() if name not in ignored | {"transfer-encoding"}
            }
            connection.request(seen.method, seen.path, body, {**headers, "content-length": str(len(body))})
            response = connection.getresponse()
            content = response.read()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP}
            if seen.method == "HEAD" and (length := response.getheader("content-length")) is not None:
                kept["Content-Length"] = length
            return response.status, {**kept, **fault.headers}, content
        finally:
            connection.close()

    def _send(self, status: int, headers: Mapping[str, str], content: bytes, fault: Fault) -> None:
        if fault.spoil is not None:
            content = fault.spoil(content)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            length = 1 << 50 if fault.is_endless else len(content)
            self.send_header("Content-Length", str(length if fault.length is None else fault.length))
        self.end_headers()
        if self.command == "HEAD":
            return
        stops_at = min(len(content), *(at for at in (fault.cut_at, fault.stall_at, len(content)) if at is not None))
        for start in range(stops_at if fault.drip_s else 0):
            self._write(content[start : start + 1])
            self.proxy.stopped.wait(fault.drip_s)
        self._write(content[:stops_at] if not fault.drip_s else b"")
        while fault.is_endless and not self.proxy.stopped.is_set():
            self._write(_ENDLESS_PIECE)
        if fault.stall_at is not None:
            self.proxy.stopped.wait(60)
        if stops_at < len(content) or fault.length not in (None, len(content)):
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        for start in range(0, len(data), 65_536):
            piece = data[start : start + 65_536]
            self.wfile.write(piece)
            self.proxy.sent_bytes += len(piece)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _ranged(fault: Fault, wanted: str | None) -> tuple[int, dict[str, str], bytes]:
    content = fault.content or b""
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
    if match is None or fault.ignores_range:
        return fault.status or 200, dict(fault.headers), content
    start, last = int(match[1]), min(int(match[2]), len(content) - 1)
    headers = {"Content-Range": f"bytes {start}-{last}/{len(content)}", **fault.headers}
    return 206, headers, content[start : last + 1]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for something that another thread brings about."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError("it did not come about")
        time.sleep(0.005)
