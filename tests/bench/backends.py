"""Many backends in one process for the bench: each a path of one server, most healthy, some hanging or dribbling.

`python -m tests.bench.backends PORT PAGE_FILE LOG_FILE`: GET /N/metrics is backend N. On SIGTERM it writes the arrival
times of each backend's polls as JSON, from which the bench counts how late they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

STEPS = re.compile(rb"(vllm:iteration_tokens_total_count\{[^}]*\}) [0-9.e+]+")


def kind(number: int) -> str:
    """A fifth of the backends is bad: hanging, refusing (by another port), dribbling, in turn."""
    return {0: "hangs", 5: "refuses", 10: "dribbles"}.get(number % 15, "works")


class Backends:
    """The server; a page differs from the last by its step counter only."""

    def __init__(self, page: bytes) -> None:
        found = STEPS.search(page)
        assert found is not None
        self._before, self._name, self._after = page[: found.start()], found.group(1), page[found.end() :]
        self.arrivals: dict[int, list[float]] = defaultdict(list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                number = int(path.split("/")[1])
                if not path.endswith("/metrics"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                arrivals = self.arrivals[number]
                arrivals.append(time.monotonic())
                if kind(number) == "hangs":
                    await asyncio.sleep(30)
                    break
                steps = f" {1000 + 7 * len(arrivals)}.0".encode()
                body = self._before + self._name + steps + self._after
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                if kind(number) == "dribbles":
                    for offset in range(100):
                        writer.write(answer[offset : offset + 1])
                        await writer.drain()
                        await asyncio.sleep(0.2)
                    break
                writer.write(answer)
        writer.close()


async def main(port: int, page: Path, log: Path) -> None:
    """Serve until SIGTERM, then write the arrivals."""
    backends, stop = Backends(page.read_bytes()), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(backends.serve, "127.0.0.1", port, backlog=4096)
    await stop.wait()
    server.close()
    log.write_text(json.dumps(backends.arrivals))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
