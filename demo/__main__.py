"""`make run`: the whole chain on loopback, telling its story a line per event. Ctrl-C ends all that it started."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from demo.chain import Chain
from demo.parts import ChainError, Parts, wait_for

HEALTHY_SECONDS = 8.0
STORY_SECONDS = 120.0
QUIET_ALERTS = frozenset({"StallwatchDeadMansSwitch"})


class Story:
    """Follows the logs of the chain and the alerts in Prometheus, and prints what is new."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self._start = chain, time.monotonic()
        self._read = {"exporter": 0, "remediator": 0}
        self._firing: set[str] = set()

    def tell(self, who: str, what: str) -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._start:7.1f} s  {who:<12} {what}", flush=True)

    def follow(self) -> None:
        """Print what happened since the last call."""
        for part, words in (("exporter", _exporter_words), ("remediator", _remediator_words)):
            entries = list(self._chain.logged(part))
            for entry in entries[self._read[part] :]:
                text = words(entry)
                if text:
                    self.tell(part, text)
            self._read[part] = len(entries)
        firing = self._chain.firing() - QUIET_ALERTS
        for name in sorted(firing - self._firing):
            self.tell("prometheus", f"{name} fires")
        for name in sorted(self._firing - firing):
            self.tell("prometheus", f"{name} fires no more")
        self._firing = firing

    def follow_until(self, condition: Callable[[], Any], timeout_seconds: float, what: str) -> None:
        """Go on following until the condition holds. Raises `ChainError`."""

        def step() -> Any:
            self.follow()
            return condition()

        wait_for(step, timeout_seconds, what)


def _exporter_words(entry: Mapping[str, Any]) -> str | None:
    match entry.get("event"):
        case "verdict":
            return f"{entry['verdict']}: {entry['why']}"
        case "asked":
            return f"asks rank {entry['rank']} for one token"
        case "ask ended":
            return f"the short request ended: {entry['result']}"
        case "restart seen":
            return "a new server process; counters of the two are never compared"
    return None


def _remediator_words(entry: Mapping[str, Any]) -> str | None:
    match entry.get("event"):
        case "alert received":
            return f"webhook received: {entry.get('status', 'firing')} alert for {entry.get('backend')}"
        case "decided":
            return f"decision: {entry.get('decision')} ({entry.get('reason')})"
        case "attempt step":
            return f"attempt: {entry.get('step')}"
        case "attempt ended":
            return f"attempt ended: {entry.get('outcome')}"
    return None


def _addresses(chain: Chain) -> None:
    ports = chain.ports
    print(
        f"""
  backend       {chain.backend_url}{"  (simulated vLLM)" if chain.simulated else ""}
  exporter      http://127.0.0.1:{ports.exporter}
  prometheus    http://127.0.0.1:{ports.prometheus}/alerts
  alertmanager  http://127.0.0.1:{ports.alertmanager}
  remediator    http://127.0.0.1:{ports.remediator}  (mode: {chain.mode})
                its buttons want any name, and the token in {chain.token_file}
""",
        flush=True,
    )


def _simulated(story: Story, chain: Chain) -> None:
    chain.start_traffic()
    story.follow_until(lambda: chain.backend().get("verdict") == "busy", 30, "the backend did not become busy")
    before_asks = _asks(chain)
    quiet_until = time.monotonic() + HEALTHY_SECONDS
    story.follow_until(lambda: time.monotonic() > quiet_until, HEALTHY_SECONDS + 5, "")
    asked = _asks(chain) - before_asks
    story.tell("story", f"busy and healthy for {HEALTHY_SECONDS:.0f} s; short requests sent to it meanwhile: {asked}")
    before = chain.identity()
    chain.fault("freeze")
    story.tell("story", "the engine is frozen; /health still says 200 and /metrics still answers")
    story.follow_until(lambda: _outcome(chain), STORY_SECONDS, "no attempt ended")
    story.follow_until(lambda: chain.backend().get("verdict") == "busy", 60, "the backend did not work again")
    after, attempts = chain.identity(), chain.actions()
    story.tell("story", f"process {before} became {after}; restarts: {len(attempts)}, outcome: {_outcome(chain)}")


def _asks(chain: Chain) -> int:
    return sum(len(rank["asks"]) for rank in chain.backend().get("ranks", []))


def _outcome(chain: Chain) -> str:
    attempts = chain.actions()
    return str(attempts[0].get("outcome") or "") if attempts else ""


def _run(arguments: argparse.Namespace, parts: Parts) -> None:
    chain = Chain(parts, backend_url=arguments.backend, mode="advise" if arguments.backend else "restart")
    if chain.simulated:
        chain.start_backend("--start-seconds", "4")
    for start in (chain.start_exporter, chain.start_remediator, chain.start_alertmanager, chain.start_prometheus):
        start()
    _addresses(chain)
    story = Story(chain)
    if chain.simulated:
        _simulated(story, chain)
        if arguments.once:
            return
    print("The chain goes on; Ctrl-C ends it.", flush=True)
    while all(part.running() for part in parts.started):
        story.follow()
        time.sleep(0.5)
    ended = next(part for part in parts.started if not part.running())
    raise ChainError(f"{ended.name} ended: {ended.last_words()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chain; exit code 0 after Ctrl-C, 1 when a part fails, with one line that says which."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--backend", help="watch this real server instead, in advise mode: nothing is restarted")
    parser.add_argument("--once", action="store_true", help="end after the story")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started it with the signal ignored
    try:
        with Parts() as parts:
            _run(arguments, parts)
    except ChainError as error:
        print(f"stallwatch demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nended all that was started.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
