"""The engines of one simulated server, stepped by a thread, with the routing between them and the faults to order."""

import threading
import time
from collections.abc import Iterable

from demo.engine import STEP_TOKENS, Engine, PauseMode, Request

_PREFILL_SHARE = 230_000  # tokens of the KV cache (262,000) that a prefill ordered by its duration may fill


class Ranks:
    """All engines under one `lock`. `start` begins to step them every `step_seconds`; `stop` ends that."""

    def __init__(self, count: int, *, max_num_seqs: int, step_seconds: float) -> None:
        self.lock = threading.Lock()
        self.engines = [Engine(max_num_seqs) for _ in range(count)]
        self._step_seconds = step_seconds
        self._next = 0
        self._given = [0] * count  # since the last tick, so that a burst does not go to one rank
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-steps", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """Step no more; returns when the thread has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: Request, rank: int | None) -> Engine:
        """Send a request to `rank`, or to the rank that published the least work, taken in turn among equals.

        A frozen rank publishes what it last did, so it goes on being given requests. IndexError: no such rank.
        """
        with self.lock:
            if rank is None:
                in_turn = [*range(self._next, len(self.engines)), *range(self._next)]
                rank = min(in_turn, key=self._load)
                self._next = (rank + 1) % len(self.engines)
                self._given[rank] += 1
            elif not 0 <= rank < len(self.engines):
                raise IndexError(rank)
            self.engines[rank].submit(request, time.monotonic())
            return self.engines[rank]

    def abort(self, engine: Engine, request: Request) -> None:
        """Take a request back from the engine it was sent to."""
        with self.lock:
            engine.abort(request)

    def all_answer(self) -> bool:
        """Whether every engine would answer a call now; a frozen one does not."""
        with self.lock:
            return not any(engine.frozen for engine in self.engines)

    def pause(self, mode: PauseMode | None) -> None:
        """Pause all engines, or resume them (None)."""
        with self.lock:
            for engine in self.engines:
                engine.paused = mode
                if mode == "abort":
                    engine.abort_all(time.monotonic())

    def in_flight(self) -> bool:
        """Whether any engine still holds requests."""
        with self.lock:
            return any(engine.in_flight for engine in self.engines)

    def paused(self) -> bool:
        """Whether the engines are paused."""
        with self.lock:
            return any(engine.paused is not None for engine in self.engines)

    def asleep(self) -> bool:
        """Whether the engines sleep."""
        with self.lock:
            return any(engine.asleep for engine in self.engines)

    def sleep(self, level: int) -> None:
        """Put all engines to sleep (1 or 2), ending what they do, or wake them (0)."""
        with self.lock:
            for engine in self.engines:
                if level:
                    engine.abort_all(time.monotonic())
                engine.sleep(level)

    def freeze(self, frozen: bool, rank: int | None) -> None:
        """Stop or let go one engine, or all of them."""
        with self.lock:
            for engine in self._chosen(rank):
                engine.frozen = frozen

    def phantom(self, rank: int, running: float, waiting: float, kv_use: float) -> None:
        """Let the page show work that the engine does not have, until its next step."""
        with self.lock:
            for engine in self._chosen(rank):
                engine.stats.gauges(running, waiting, kv_use)

    def prefill(self, rank: int, seconds: float) -> None:
        """Send one prompt that is prefilled for about `seconds`: KV use rises, and nothing else moves."""
        steps = max(1, round(seconds / self._step_seconds))
        per_step = max(1, min(STEP_TOKENS, _PREFILL_SHARE // steps))
        with self.lock:
            for engine in self._chosen(rank):
                engine.submit(Request(per_step * steps, 1, step_tokens=per_step), time.monotonic())

    def hold_step(self, rank: int, seconds: float) -> None:
        """Let one step last `seconds`."""
        with self.lock:
            for engine in self._chosen(rank):
                engine.hold_step(seconds, time.monotonic())

    def _load(self, rank: int) -> float:
        published = self.engines[rank].stats.values
        running, waiting = (published.get(f"num_requests_{what}", 0.0) for what in ("running", "waiting"))
        return 4 * waiting + running + self._given[rank]

    def _chosen(self, rank: int | None) -> Iterable[Engine]:
        return self.engines if rank is None else [self.engines[rank]]

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            with self.lock:
                self._given = [0] * len(self.engines)
                for engine in self.engines:
                    engine.step(now)
            # Late steps are lost, not caught up with: a starved machine makes a slow engine, not a hasty one.
            due = max(due + self._step_seconds, now)
