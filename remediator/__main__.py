"""stallwatch-remediator: receives alerts, decides whether it may act, restarts what is proven stuck."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import disable_created_metrics

from remediator.clock import SystemClock
from remediator.config import Config, check_journal_url, check_listen, load
from remediator.database import JournalFailed
from remediator.evidence import Exporters
from remediator.journal import Journal
from remediator.metrics import Metrics
from remediator.parts import Parts
from remediator.pending import Pending
from remediator.runner import Runner
from remediator.web import MAX_BODY_BYTES, create_app
from stallwatch import __version__, logs
from stallwatch.serving import Server
from stallwatch.settings import SettingsError

USER_ERROR = 2
LOOP_SECONDS = 120.0
"""A loop that was not round for so long, plus six rounds, is not healthy."""
LAST_STEP_SECONDS = 5.0
"""For steps under way at the end, beside a driver call, which gets the time that it may take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; what a user can mend is one line on standard error and exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        config = load(Path(options.config_file))
        check_listen(options.listen, config.token)
        if options.config_check:
            print(f"{options.config_file}: valid, mode {config.mode}, {len(config.backends)} backends")
            return 0
        logs.configure(options.log_level, options.log_format)
        return serve(config, options.listen)
    except (SettingsError, JournalFailed) as error:
        print(f"stallwatch-remediator: {error}", file=sys.stderr)
        return USER_ERROR


def serve(config: Config, listen: str) -> int:
    """Serve until SIGTERM or SIGINT. Raises `SettingsError` or `JournalFailed` before anything has begun."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # half of all series, and nobody reads them
    log = logs.get_logger("main")
    journal = Journal(check_journal_url(config.journal_url))
    evidence = Exporters(config.exporter_urls, config.exporter_timeout_seconds)
    clock = SystemClock()
    parts = Parts(config, journal, evidence, clock, Metrics(config))
    runner = Runner(parts)
    pending = Pending(parts, runner)
    limit = LOOP_SECONDS + 6 * config.decide_every_seconds
    app = create_app(parts, lambda: clock.monotonic() - pending.ticked_at < limit)
    server = Server(app, listen, max_body_bytes=MAX_BODY_BYTES + 1)
    server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(parts))
    _warn_of_missing_programs(config)
    log.info("started", version=__version__, mode=config.mode, listen=listen, backends=len(config.backends))
    loop = threading.Thread(target=pending.run, name="pending", daemon=True)
    loop.start()
    while not parts.stop.wait(3600.0):
        pass
    log.info("stopping")
    server.stop()
    loop.join(LAST_STEP_SECONDS)
    # A driver call under way is waited for: ending with it might leave a backend stopped.
    longest = max(backend.driver.timeout_seconds for backend in config.backends.values())
    finished = runner.join(longest + LAST_STEP_SECONDS)
    log.info("stopped", attempts_finished_or_handed_over=finished)
    journal.close()
    return 0


def _stop(parts: Parts) -> None:
    if parts.stop.is_set():  # asked for the second time: what is under way is taken up at the next start
        sys.exit(1)
    parts.stop.set()
    parts.wake.set()


def _warn_of_missing_programs(config: Config) -> None:
    log = logs.get_logger("main")
    for backend in config.backends.values():
        for program in backend.driver.programs:
            if shutil.which(program) is None:
                log.warning("program not found", backend=backend.name, program=program)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stallwatch-remediator",
        description="Receives Prometheus alerts, decides whether it may act, and restarts what is proven stuck.",
    )
    parser.add_argument(
        "--config.file", dest="config_file", default="remediator.yml", metavar="FILE", help="the configuration"
    )
    parser.add_argument(
        "--config.check", dest="config_check", action="store_true", help="check the configuration and exit"
    )
    parser.add_argument(
        "--web.listen-address",
        dest="listen",
        default="127.0.0.1:9841",
        metavar="HOST:PORT",
        help="where the webhook, /metrics and the status page are served (default: %(default)s)",
    )
    parser.add_argument("--log.level", dest="log_level", default="info", choices=logs.LEVELS, help="default: info")
    parser.add_argument(
        "--log.format", dest="log_format", default="logfmt", choices=logs.FORMATS, help="default: logfmt"
    )
    parser.add_argument("--version", action="version", version=f"stallwatch-remediator {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
