"""stallwatch-remediator: receives alerts, decides whether it may act, restarts what is proven stuck."""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import disable_created_metrics

from remediator import usage
from remediator.clock import SystemClock
from remediator.config import Config, check_journal_url, check_listen, load
from remediator.database import JournalFailed
from remediator.document import Wanted
from remediator.evidence import Exporters
from remediator.export import export
from remediator.journal import Journal
from remediator.lives import Lives
from remediator.metrics import Metrics
from remediator.parts import Parts
from remediator.pending import Pending
from remediator.runner import Runner
from remediator.timeline import backend_name, duration, instant, write
from remediator.web import MAX_BODY_BYTES, create_app
from stallwatch import __version__, logs
from stallwatch.serving import Server
from stallwatch.settings import SettingsError
from stallwatch.webconfig import WebConfig

USER_ERROR = 2
LOOP_SECONDS = 120.0
"""A loop that was not round for so long, plus six rounds, is not healthy."""
LAST_STEP_SECONDS = 5.0
"""For steps under way at the end, beside a driver call, which gets the time that it may take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; what a user can mend is one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["export"]:
            return write_export(_export_parser().parse_args(words[1:]))
        if words[:1] == ["timeline"]:
            return write_timeline(_timeline_parser().parse_args(words[1:]))
        options = _parser().parse_args(words)
        config = load(Path(options.config_file))
        check_listen(options.listen, config)
        web = WebConfig(Path(options.web_config)) if options.web_config else None
        check_web(config, web)
        if options.config_check:
            print(f"{options.config_file}: valid, mode {config.mode}, {len(config.backends)} backends")
            return 0
        logs.configure(options.log_level, options.log_format)
        return serve(config, options.listen, web)
    except (SettingsError, JournalFailed) as error:
        print(f"stallwatch-remediator: {error}", file=sys.stderr)
        return USER_ERROR


def write_export(options: argparse.Namespace) -> int:
    """The sub-command `export`. Raises `SettingsError` or `JournalFailed`."""
    config = load(Path(options.config_file))
    since = 0.0 if options.since is None else SystemClock().time() - options.since
    try:
        where = check_journal_url(config.journal_url)
        export(where, config.journal_password, sys.stdout, since=since, backend=options.backend)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough; the rest of the buffer has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def write_timeline(options: argparse.Namespace) -> int:
    """The sub-command `timeline`. Raises `SettingsError` or `JournalFailed`."""
    config = load(Path(options.config_file))
    end = math.ceil(SystemClock().time()) if options.until is None else options.until
    plot = Path(options.plot) if options.plot else None
    try:
        write(config, Wanted(options.backend, end - options.since, end, options.prometheus, plot), sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def check_web(config: Config, web: WebConfig | None) -> None:
    """Raise `SettingsError` when nobody could show what both files ask for: a request has one Authorization header.

    Users of the web configuration may read. Who may change anything is what `webhook` says, whoever may read.
    """
    users = web.current().users if web is not None else {}
    if users and config.credentials.needed and config.credentials.username not in users:
        raise SettingsError(
            "--web.config.file: with basic_auth_users, webhook.username must be one of them (and webhook.password_file "
            "hold his password); a bearer token cannot be shown as well"
        )


def serve(config: Config, listen: str, web: WebConfig | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Raises `SettingsError` or `JournalFailed` before anything has begun."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # half of all series, and nobody reads them
    log = logs.get_logger("main")
    journal = Journal(check_journal_url(config.journal_url), config.journal_password, config.retention_days)
    evidence = Exporters(config.exporter_urls, config.exporter_timeout_seconds, config.exporter_access)
    clock = SystemClock()
    parts = Parts(config, journal, evidence, clock, Metrics(config))
    runner = Runner(parts)
    pending = Pending(parts, runner)
    limit = LOOP_SECONDS + 6 * config.decide_every_seconds
    app = create_app(parts, lambda: clock.monotonic() - pending.ticked_at < limit)
    server = Server(app, listen, max_body_bytes=MAX_BODY_BYTES + 1, web=web)
    server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(parts))
    _warn_of_missing_programs(config)
    log.info(
        "started",
        version=__version__,
        mode=config.mode,
        listen=listen,
        backends=len(config.backends),
        replica=journal.replica,
    )
    loop = threading.Thread(target=pending.run, name="pending", daemon=True)
    loop.start()
    threading.Thread(target=Lives(parts).run, name="lives", daemon=True).start()
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
        epilog=usage.MAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    parser.add_argument(
        "--web.config.file",
        dest="web_config",
        metavar="FILE",
        help="TLS and users, as Prometheus's exporter-toolkit has it",
    )
    parser.add_argument("--log.level", dest="log_level", default="info", choices=logs.LEVELS, help="default: info")
    parser.add_argument(
        "--log.format", dest="log_format", default="logfmt", choices=logs.FORMATS, help="default: logfmt"
    )
    parser.add_argument("--version", action="version", version=f"stallwatch-remediator {__version__}")
    return parser


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stallwatch-remediator export",
        description="Writes the journal to standard output, one event a line as JSON, oldest first.",
    )
    parser.add_argument("--config.file", dest="config_file", default="remediator.yml", metavar="FILE")
    parser.add_argument(
        "--since", type=_duration, metavar="DURATION", help="how far back, such as 90m, 12h or 30d; default: everything"
    )
    parser.add_argument("--backend", metavar="NAME", help="only this backend's events, and storms")
    return parser


def _timeline_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stallwatch-remediator timeline",
        description="Writes one backend's timeline as Markdown, from the journal and from Prometheus.",
    )
    add = parser.add_argument
    add("--config.file", dest="config_file", default="remediator.yml", metavar="FILE", help="where the journal is")
    add("--backend", type=backend_name, required=True, metavar="NAME")
    add("--since", type=duration, required=True, metavar="DURATION", help="how far back: 30m, 6h, 2d")
    add("--until", type=instant, metavar="TIME", help="the end, as 2026-05-01T10:00:00Z or Unix seconds; default: now")
    add("--prometheus", metavar="URL", help="where verdicts, rates and alerts are read, such as http://127.0.0.1:9090")
    add("--plot", metavar="FILE", help="write work rate and stalled seconds there, as SVG")
    return parser


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 90m, 12h or 30d")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


if __name__ == "__main__":
    sys.exit(main())
