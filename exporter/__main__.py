"""stallwatch-exporter: flags and sub-commands. `serve` is the default; check, record, replay and backtest beside it."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from exporter import backtest, check, config, record, recording, usage
from exporter.discovery import Discovery
from exporter.fleet import Fleet, Shard
from exporter.model import LIMIT_KEYS
from exporter.page import PageParser
from exporter.pages.words import LIMITS
from exporter.runtimes import builtin
from exporter.web import create_app
from stallwatch import __version__, logs
from stallwatch.serving import Server
from stallwatch.settings import SettingsError, check_url
from stallwatch.webconfig import WebConfig

COMMANDS = ("serve", "check", "record", "replay", "backtest")
USAGE_ERROR = 2
SWITCH_SECONDS = 0.05
"""How often a thread that waits for the interpreter asks for it. With a thread per backend the usual 5 ms make a
short shortage of CPU lasting: a thousand that wait wake up 200,000 times a second, for nothing. No poll computes for
longer than a few milliseconds, so that nobody waits longer for it."""


class _Parser(argparse.ArgumentParser):
    """Usage errors are one line; `check` keeps 2 for "stuck or down" and ends with 3 instead."""

    usage_error = USAGE_ERROR

    def error(self, message: str) -> NoReturn:
        self.exit(self.usage_error, f"{self.prog}: {message}\n")


class _CheckParser(_Parser):
    usage_error = check.UNKNOWN


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return value


def _url(text: str) -> str:
    try:
        return check_url(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from error


def _shard(text: str) -> Shard:
    number, _, count = text.partition("/")
    if number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count):
        return Shard(int(number), int(count))
    raise argparse.ArgumentTypeError(f"{text!r} is not K/N with 1 <= K <= N")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits, in seconds (default: the runtime's)")
    for key in LIMIT_KEYS:
        flag = "--" + key.removesuffix("_seconds").replace("_", "-")
        group.add_argument(flag, dest=key, type=_seconds, metavar="SECONDS", help=LIMITS[key])


def _add_runtime(parser: argparse.ArgumentParser, default: str, *extra: str) -> None:
    kinds = sorted(builtin())
    parser.add_argument("--runtime", default=default, choices=[*extra, *kinds], help=f"kind of server ({default})")


def _add_logs(parser: argparse.ArgumentParser, level: str) -> None:
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log.level", dest="log_level", default=level, choices=levels)
    parser.add_argument("--log.format", dest="log_format", default="logfmt", choices=("logfmt", "json"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="stallwatch-exporter",
        description="Watches LLM model servers through their own metrics and says which of them are stuck. "
        "It never sends a request to a server that shows progress.",
        epilog=usage.MAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stallwatch-exporter {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    serve = commands.add_parser("serve", help="watch the configured backends and serve their metrics (the default)")
    serve.add_argument("--config.file", dest="config_file", type=Path, default=Path("exporter.yml"))
    serve.add_argument("--config.check", dest="config_check", action="store_true", help="check the file and end")
    serve.add_argument("--web.listen-address", dest="listen", default="127.0.0.1:9840")
    serve.add_argument(
        "--web.config.file", dest="web_config", type=Path, help="TLS and users, as exporter-toolkit has it"
    )
    serve.add_argument("--web.runbook-url", dest="runbook_url", type=_url, help="where rules/runbooks/ is published")
    serve.add_argument("--web.enable-lifecycle", dest="lifecycle", action="store_true", help="reload by POST /-/reload")
    serve.add_argument("--shard", type=_shard, default=Shard(), metavar="K/N", help="watch one N-th of the backends")
    _add_logs(serve, "info")
    _add_limits(serve)

    commands._parser_class = _CheckParser
    once = commands.add_parser("check", help="judge one server now, for a person or a timer; no liveness probe")
    commands._parser_class = _Parser
    once.epilog, once.formatter_class = usage.CHECK, argparse.RawDescriptionHelpFormatter
    once.add_argument("url", help="where it listens, such as http://127.0.0.1:8000")
    once.add_argument("--wait", type=_seconds, default=None, metavar="SECONDS", help="how long the proof may take")
    once.add_argument("--fail-on", choices=("stuck",), default=None, help="fail only on this verdict (for timers)")
    once.add_argument("--api-key-file", default=None, help="file with the key for short requests")
    _add_runtime(once, config.AUTO, config.AUTO)
    _add_logs(once, "error")
    _add_limits(once)

    tape = commands.add_parser("record", help="write what a server's pages say over time to a file")
    tape.add_argument("url", help="where the server listens")
    tape.add_argument("file", type=Path, help="JSON lines; compressed if it ends in .gz")
    tape.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS")
    tape.add_argument("--for", dest="duration", type=_seconds, default=60.0, metavar="SECONDS")

    again = commands.add_parser("replay", help="run the verdict over recordings; no server, no clock")
    again.add_argument("files", nargs="+", type=Path, metavar="FILE")
    _add_runtime(again, "vllm")
    _add_limits(again)

    history = commands.add_parser("backtest", help="run the stall clocks over the history that a Prometheus holds")
    backtest.add_arguments(history)
    _add_runtime(history, "vllm")
    return parser


def _limits(arguments: argparse.Namespace) -> dict[str, float]:
    given = {key: getattr(arguments, key) for key in LIMIT_KEYS}
    return {key: value for key, value in given.items() if value is not None}


def _raise_file_limit() -> None:
    """Each backend keeps a connection; the usual soft limit of 1,024 would starve our own /metrics of one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))


def _serve(arguments: argparse.Namespace) -> int:
    logs.configure(arguments.log_level, arguments.log_format)
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    web = WebConfig(arguments.web_config) if arguments.web_config else None
    discovery = Discovery(lambda: config.read(arguments.config_file, _limits(arguments)), arguments.shard.has)
    if arguments.config_check:
        return _check_config(arguments.config_file, discovery)
    fleet = Fleet(discovery.load, discovered=discovery.counts)
    server = Server(
        create_app(fleet, lifecycle=arguments.lifecycle, runbooks=arguments.runbook_url), arguments.listen, web=web
    )
    log, stop, hangup = logs.get_logger("main"), threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: hangup.set())
    fleet.start()
    try:
        server.start()
        lists = (stop, lambda: fleet.update(discovery.current))
        threading.Thread(target=discovery.run, args=lists, name="discovery", daemon=True).start()
        log.info("started", version=__version__, listen=arguments.listen, backends=len(fleet.snapshots()))
        while not stop.wait(0.5):
            if hangup.is_set():
                hangup.clear()
                fleet.reload()
        log.info("stopping")
    finally:
        fleet.halt()  # first, so that a thousand loops do not compete with the rest of the ending
        server.stop()
        ended = fleet.stop()
    log.info("stopped", readings_left_behind=not ended)
    if not ended:
        # The interpreter would wait for hundreds of hanging readings in turn to let go of it; they hold nothing.
        sys.stderr.flush()
        os._exit(0)
    return 0


def _check_config(path: Path, discovery: Discovery) -> int:
    """The file, and the files of targets that it names; no server is asked."""
    backends = discovery.load(checking=True)
    if errors := discovery.file_errors():
        raise SettingsError(errors[0])
    print(f"{path}: valid, {len(backends)} backends")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    logs.configure(arguments.log_level, arguments.log_format)
    return check.run(
        arguments.url,
        config.runtime_named(arguments.runtime),
        _limits(arguments),
        wait_seconds=arguments.wait,
        fail_on=arguments.fail_on,
        api_key_file=arguments.api_key_file,
    )


def _record(arguments: argparse.Namespace) -> int:
    return record.run(arguments.url, arguments.file, arguments.every, arguments.duration)


def _replay(arguments: argparse.Namespace) -> int:
    runtime = builtin()[arguments.runtime]
    limits = config.backend("replay", "http://127.0.0.1", runtime, _limits(arguments)).limits
    several: Mapping[str, Any]
    for path in arguments.files:
        several = {"file": str(path)} if len(arguments.files) > 1 else {}
        for step in recording.replay(recording.read_lines(path), PageParser(runtime), limits):
            print(recording.to_json({**several, **step.row}))
    return 0


def _backtest(arguments: argparse.Namespace) -> int:
    print(backtest.from_arguments(arguments, builtin()[arguments.runtime]))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; return the exit code. What a user can cause is one line on standard error, and code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0] not in COMMANDS and words[0] not in ("-h", "--help", "--version")):
        words = ["serve", *words]
    arguments = _parser().parse_args(words)
    known = {"serve": _serve, "check": _check, "record": _record, "replay": _replay, "backtest": _backtest}
    command = known[arguments.command]
    try:
        return command(arguments)
    except (SettingsError, recording.RecordingError) as error:
        print(f"stallwatch-exporter: {error}", file=sys.stderr)
        return check.UNKNOWN if arguments.command == "check" else USAGE_ERROR
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
