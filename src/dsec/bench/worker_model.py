"""A chat model that thinks and then looks at the next part of a program: `python -m dsec.bench.worker_model`.

It prints its port and answers until its standard input ends. How long it thinks is drawn from an exponential
distribution, seeded: real thinking has short and very long turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

_CALL = {"name": "shell", "arguments": json.dumps({"command": "sed -n 1,80p program.py"})}
_ANSWER = json.dumps(
    {
        "model": "bench-1",
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": "I look at the next part.",
                    "tool_calls": [{"id": "c", "type": "function", "function": _CALL}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 19_000, "completion_tokens": 60},
    }
).encode()
_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"


class ThinkingModel:
    """Answers one request on each connection.

    Args:
        think_s: mean time.
    """

    def __init__(self, think_s: float) -> None:
        self._think_s = think_s
        self._draw = random.Random(7)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            while length > 0:
                length -= len(await reader.read(min(length, 1 << 16)))
            await asyncio.sleep(self._draw.expovariate(1 / self._think_s))
            writer.write(_REPLY % (len(_ANSWER), _ANSWER))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # Whoever asked has gone.
        finally:
            writer.close()


async def _main(think_s: float) -> None:
    server = await asyncio.start_server(ThinkingModel(think_s).serve, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))
