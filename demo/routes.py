"""The paths of the simulated server."""

import os
import queue
import time

from demo.api import Rejected, answer, as_json, event, parse
from demo.engine import PauseMode, Request
from demo.handler import LOOK_SECONDS, Connection

_PAUSE_MODES: dict[str, PauseMode] = {"abort": "abort", "keep": "keep", "wait": "wait"}


class Paths(Connection):
    """A method per path; `routes` below says which answers what."""

    # The server's own paths

    def metrics(self) -> None:
        self.send(200, self.server.page(), "text/plain; version=0.0.4; charset=utf-8")

    def health(self) -> None:
        self.send(200)

    def version(self) -> None:
        self.send(200, as_json({"version": "0.32.0"}))

    def models(self) -> None:
        self.send(200, self.server.served.listing(self.server.started_at))

    def completions(self) -> None:
        self._generate(chat=False)

    def chat_completions(self) -> None:
        self._generate(chat=True)

    def _generate(self, *, chat: bool) -> None:
        request = parse(self.body, self.server.served, chat=chat)
        header = self.headers.get("X-data-parallel-rank", "")
        try:
            engine = self.server.ranks.submit(request, int(header) if header.isdecimal() else None)
        except IndexError as error:
            raise Rejected(400, f"data_parallel_rank {header} is out of range.") from error
        try:
            answered = self._stream(request, chat=chat) if request.streams else self._whole(request, chat=chat)
        except ConnectionError:
            answered = False
        if not answered:
            self.close_connection = True
            self.server.ranks.abort(engine, request)

    def _next_output(self, request: Request) -> str | None:
        """The next token or the reason of the end; None if the client has gone."""
        while True:
            try:
                return request.outputs.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self.client_gone():
                    return None

    def _whole(self, request: Request, *, chat: bool) -> bool:
        reason = self._next_output(request)
        if reason is None:
            return False
        self.send(200, answer(request, self.server.served, reason, chat=chat))
        return True

    def _stream(self, request: Request, *, chat: bool) -> bool:
        # As in vLLM the status line goes out at once, whether or not the engine lives.
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        output: str | None = ""
        while output == "":
            output = self._next_output(request)
            if output is None:
                return False
            self._chunk(event(self.server.served, output, chat=chat))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        return True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    # Calls that the engines themselves answer: a frozen one lets them wait

    def pause(self) -> None:
        name = self.query.get("mode", ["abort"])[0]
        if name not in _PAUSE_MODES:
            raise Rejected(400, f"There is no pause mode {name}.")
        self.wait_until(self.server.ranks.all_answer)
        self.server.ranks.pause(_PAUSE_MODES[name])
        if name == "wait":
            self.wait_until(lambda: not self.server.ranks.in_flight())
        self.send(200, as_json({"status": "paused"}))

    def resume(self) -> None:
        self.wait_until(self.server.ranks.all_answer)
        self.server.ranks.pause(None)
        self.send(200, as_json({"status": "resumed"}))

    def is_paused(self) -> None:
        self.wait_until(self.server.ranks.all_answer)
        self.send(200, as_json({"is_paused": self.server.ranks.paused()}))

    def sleep(self) -> None:
        level = int(self.number("level", 1.0))
        if level not in (1, 2):
            raise Rejected(400, f"There is no sleep level {level}.")
        self._change_sleep("sleep", level)
        self.send(200, as_json({"status": "sleeping", "level": level}))

    def wake_up(self) -> None:
        self._change_sleep("wake", 0)
        self.send(200, as_json({"status": "awake", "tags": None}))

    def _change_sleep(self, operation: str, level: int) -> None:
        began = time.monotonic()
        self.wait_until(self.server.ranks.all_answer)
        self.server.ranks.sleep(level)
        self.server.note_sleep(operation, time.monotonic() - began)

    def is_sleeping(self) -> None:
        self.wait_until(self.server.ranks.all_answer)
        self.send(200, as_json({"is_sleeping": self.server.ranks.asleep()}))

    # Faults to order

    def freeze(self) -> None:
        self.server.ranks.freeze(True, self.rank())
        self.send(200, as_json({"status": "frozen"}))

    def thaw(self) -> None:
        self.server.ranks.freeze(False, self.rank())
        self.send(200, as_json({"status": "thawed"}))

    def phantom(self) -> None:
        work = self.number("running", 106.0), self.number("waiting", 15.0), self.number("kv", 0.904)
        self.server.ranks.phantom(self.rank() or 0, *work)
        self.send(200, as_json({"status": "phantom"}))

    def prefill(self) -> None:
        self.server.ranks.prefill(self.rank() or 0, self.number("seconds"))
        self.send(200, as_json({"status": "prefilling"}))

    def huge_step(self) -> None:
        self.server.ranks.hold_step(self.rank() or 0, self.number("seconds"))
        self.send(200, as_json({"status": "stepping"}))

    def die(self) -> None:
        self.send(200, as_json({"status": "dying"}))
        self.wfile.flush()
        os._exit(1)


Paths.routes = {
    "/metrics": ("GET", Paths.metrics),
    "/health": ("GET", Paths.health),
    "/version": ("GET", Paths.version),
    "/v1/models": ("GET", Paths.models),
    "/v1/completions": ("POST", Paths.completions),
    "/v1/chat/completions": ("POST", Paths.chat_completions),
    "/pause": ("POST", Paths.pause),
    "/resume": ("POST", Paths.resume),
    "/is_paused": ("GET", Paths.is_paused),
    "/sleep": ("POST", Paths.sleep),
    "/wake_up": ("POST", Paths.wake_up),
    "/is_sleeping": ("GET", Paths.is_sleeping),
    "/demo/freeze": ("POST", Paths.freeze),
    "/demo/thaw": ("POST", Paths.thaw),
    "/demo/phantom": ("POST", Paths.phantom),
    "/demo/prefill": ("POST", Paths.prefill),
    "/demo/huge-step": ("POST", Paths.huge_step),
    "/demo/die": ("POST", Paths.die),
}
