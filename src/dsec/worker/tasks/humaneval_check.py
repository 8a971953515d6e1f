"""Check a solution of a HumanEval problem; runs as root in the sandbox, as ``/tests/check.py``.

Not part of any process of ours: it is a file of the tasks that `humaneval.py` writes, and needs nothing but the
standard library of Python 3.8.

The solution is hostile code that would like the tests to pass. So it runs in a process of its own, as another user,
which was made before the tests were read; it is asked for results over a pipe and answers with literals. The comparison
happens here, on plain values: a solution that ends the interpreter, overloads ``==`` or prints what it likes gains
nothing.
"""

from __future__ import annotations

import ast
import json
import os
import select
import signal
import sys
import time
from typing import Any

LIMIT_S = 10.0
MAXIMUM_ANSWER_BYTES = 64 << 20
SOLUTION = "/home/user/solution.py"


class RefusedError(Exception):
    """The solution raised, answered nonsense, ended or took too long."""


def become_nobody() -> None:
    """Give up root: take the identity of the owner of the solution's directory."""
    owner = os.stat(os.path.dirname(SOLUTION)).st_uid or 65534
    os.setgroups([])
    os.setgid(owner)
    os.setuid(owner)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def serve(requests: int, answers: int, entry_point: str) -> None:
    """Be the solution's process: read arguments, write results, one line each."""
    become_nobody()
    import site

    site.main()
    with open(SOLUTION, "rb") as file:
        source = file.read()
    namespace: dict[str, Any] = {"__name__": "solution"}
    exec(compile(source, SOLUTION, "exec"), namespace)
    function = namespace[entry_point]
    with os.fdopen(requests) as lines, os.fdopen(answers, "w") as out:
        for line in lines:
            try:
                answer = "=" + repr(function(*ast.literal_eval(line)))
            except Exception as error:  # noqa: BLE001 - whatever the solution raises is its answer.
                answer = "!" + repr(error)
            out.write(answer.replace("\n", " ") + "\n")
            out.flush()


class Candidate:
    """Stands for the solution's function."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._deadline = time.monotonic() + LIMIT_S
        self._rest = b""

    def __call__(self, *arguments: object) -> Any:
        try:
            os.write(self._requests, repr(arguments).encode() + b"\n")
        except OSError:
            raise RefusedError("the solution ended") from None
        line = self._line()
        if not line.startswith(b"="):
            raise RefusedError(line[:300].decode(errors="replace"))
        try:
            return ast.literal_eval(line[1:].decode())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise RefusedError("the result is no plain value") from None

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise RefusedError(f"no result within {LIMIT_S:g} s")
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                raise RefusedError("the solution ended")
            self._rest += chunk
            if len(self._rest) > MAXIMUM_ANSWER_BYTES:
                raise RefusedError("the result is too long")
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def check(candidate: Candidate, entry_point: str) -> str:
    """Run the assertions; return what is wrong, "" when all hold. The text's other functions are the problem's own."""
    with open("/tests/problem.json") as file:
        problem = json.load(file)
    namespace: dict[str, Any] = {}
    try:
        exec(problem["prompt"], namespace)
        namespace[entry_point] = candidate
        exec(problem["test"], namespace)
        namespace["check"](candidate)
    except RefusedError as error:
        return f"the solution was refused: {error}"
    except AssertionError as error:
        return f"an assertion does not hold: {error}"
    except Exception as error:  # noqa: BLE001 - assertions may raise anything over a strange result.
        return f"the check failed: {error!r}"
    return ""


def main() -> int:
    """Split in two, check, and return the exit code."""
    os.chmod("/tests", 0o700)
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(request_write)
        os.close(answer_read)
        try:
            serve(request_read, answer_write, sys.argv[1])
        finally:
            os._exit(1)
    os.close(request_read)
    os.close(answer_write)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        wrong = check(Candidate(request_write, answer_read), sys.argv[1])
    finally:
        os.kill(child, signal.SIGKILL)
    sys.stdout.write((wrong or "all assertions hold") + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
