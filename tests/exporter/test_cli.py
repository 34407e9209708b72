"""The command as a person runs it: exit codes, one line per error, and what each sub-command prints."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.__main__ import main
from exporter.check import needed
from exporter.config import AskSettings, backend
from exporter.runtimes import builtin
from exporter.state import State
from tests.exporter.servers import Script, answer, once, read_request, scripted

RECORDINGS = Path(__file__).parent.parent / "recordings"
SHORT = ["--suspect-after", "5", "--stuck-after", "10", "--ask-timeout", "3", "--idle-ask", "5"]
SHORT += ["--startup-grace", "20", "--unreachable-after", "8", "--down-after", "5", "--poll-interval", "1"]
SHORT += ["--poll-timeout", "3"]
FAST = ["--suspect-after", "0.2", "--stuck-after", "0.4", "--ask-timeout", "0.1", "--down-after", "0.3"]
FAST += ["--poll-interval", "0.05", "--poll-timeout", "0.5"]
KINDS = ("vllm", "llamacpp")


def run(argv: Sequence[str]) -> int:
    """The exit code, whether it is returned or raised."""
    try:
        return main(argv)
    except SystemExit as end:
        return int(end.code or 0)


def test_replay_prints_a_line_a_poll(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is JSON with the agreed keys; the freeze is found and the question is shown."""
    assert run(["replay", str(RECORDINGS / "05-freeze-while-busy.jsonl.gz"), *SHORT]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 43
    keys = {"t", "verdict", "reason", "stalled_seconds", "engine_progress_rate", "restart_detected", "asked"}
    assert all(set(row) == keys for row in rows)
    assert any(row["verdict"] == "stuck" for row in rows)
    assert any(row["asked"] for row in rows)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["replay", "/nonexistent.jsonl"], "cannot be read"),
        (["--config.file", "/nonexistent.yml"], "cannot be read"),
        (["--config.file", "x.yml", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["replay", "x", "--stuck-after", "soon"], "is not a number of seconds"),
        (["replay", "x", "--runtime", "vlm"], "invalid choice"),
        (["record", "not-a-url", "/tmp/x"], "http:// or https://"),
    ],
)
def test_user_errors_are_one_line_and_two(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a user can cause is one line on standard error, and exit code 2."""
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_replay_of_noise_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no recording names its line."""
    for content in (b"{}\n", b"nonsense\n", b"\xff\xfe\n", b'{"t": 1}\n[]\n'):
        path = tmp_path / "x.jsonl"
        path.write_bytes(content)
        assert run(["replay", str(path)]) == 2
        assert f"{path}:" in capsys.readouterr().err


def test_config_check(capsys: pytest.CaptureFixture[str]) -> None:
    """The example is valid; checking serves nothing."""
    example = Path(__file__).parent.parent.parent / "config" / "exporter.yml"
    assert run(["--config.file", str(example), "--config.check"]) == 0
    assert "valid, 1 backends" in capsys.readouterr().out


def test_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that somebody has is said in one line; so is an address that is none."""
    path = tmp_path / "exporter.yml"
    path.write_text("backends: [{name: a, url: 'http://127.0.0.1:1'}]")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["--config.file", str(path), "--web.listen-address", address, "--log.level", "error"]) == 2
    assert f"cannot listen on {address}" in capsys.readouterr().err
    assert run(["--config.file", str(path), "--web.listen-address", "nonsense"]) == 2


def vllm(*, moves: bool, running: int, answers: bool) -> Script:
    """A server with one page; each answered request moves it by a step."""
    steps = [5]

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            if request.startswith(b"POST"):
                if not answers:
                    connection.recv(1)
                    return
                steps[0] += 1
                connection.sendall(answer(body=b"{}"))
            elif request.startswith(b"GET /metrics"):
                steps[0] += 10 * moves
                labels = 'engine="0",model_name="m"'
                page = f"vllm:iteration_tokens_total_count{{{labels}}} {steps[0]}\n"
                page += f"vllm:num_requests_running{{{labels}}} {running}\n"
                connection.sendall(answer(body=page.encode()))
            else:
                connection.sendall(answer("404 Not Found"))

    return script


@pytest.mark.parametrize(
    ("script", "code", "word"),
    [
        (vllm(moves=True, running=3, answers=False), 0, "busy"),
        (vllm(moves=False, running=0, answers=True), 0, "idle"),
        (vllm(moves=False, running=3, answers=False), 2, "stuck"),
        (vllm(moves=False, running=0, answers=False), 2, "stuck"),
        (once(answer(body=b"python_info 1\n"), keep=True), 3, "unmeasured"),
    ],
    ids=["busy", "idle", "frozen-busy", "frozen-idle", "no-metrics"],
)
def test_check(script: Script, code: int, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and the exit code of what was proven."""
    with scripted(script) as url:
        assert run(["check", url, *FAST, "--wait", "30"]) == code
    output = capsys.readouterr().out
    assert output.startswith(word)
    assert output.count("\n") == 1


def test_check_says_unproven_when_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that stands still but is within its limit is neither healthy nor stuck."""
    with scripted(vllm(moves=False, running=3, answers=False)) as url:
        assert run(["check", url, *FAST, "--stuck-after", "60", "--wait", "0.5"]) == 1
    assert capsys.readouterr().out.startswith("unproven: ")


def test_check_of_nothing_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused for longer than the limit is down: 2; with --fail-on stuck it is not what was asked about: 0."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert run(["check", url, *FAST]) == 2
        assert run(["check", url, *FAST, "--fail-on", "stuck"]) == 0
    assert capsys.readouterr().out.startswith("down (refused)")


def closes(connection: socket.socket) -> None:
    """Reads the request and answers nothing."""
    read_request(connection)


def test_check_waits_as_long_as_the_proof_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """A page that never comes is `unreachable` only after longer than `stuck` needs; that is waited for."""
    silent = ["--poll-timeout", "0.05", "--unreachable-after", "1.5"]
    with scripted(closes) as url:
        assert run(["check", url, *FAST, *silent]) == 2
    assert capsys.readouterr().out.startswith("unreachable ")


def test_check_takes_the_wait_of_the_kind_that_the_page_tells() -> None:
    """llama.cpp works fifteen minutes on one prompt at times; `auto` knows it from the first page."""
    quick, slow = (backend("a", "http://a", builtin()[kind], {}, ask=AskSettings()).limits for kind in KINDS)
    assert needed(quick, State()) < 900 < needed(slow, State())


@pytest.mark.parametrize("argv", [["check", "nonsense"], ["check"], ["check", "http://a", "--wait", "-1"]])
def test_usage_errors_of_check_are_three(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """2 means stuck or down for check, so that a typing error must not."""
    assert run(argv) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_recorded_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording of a server that works replays as busy, and no request was sent to record it."""
    path = tmp_path / "x.jsonl.gz"
    with scripted(vllm(moves=True, running=3, answers=False)) as url:
        assert run(["record", url, str(path), "--every", "0.05", "--for", "0.3"]) == 0
    capsys.readouterr()
    assert run(["replay", str(path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["verdict"] for row in rows} == {"busy"}
    assert len(rows) >= 4


def test_record_to_nowhere_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be written is said so."""
    assert run(["record", "http://127.0.0.1:1", "/nonexistent/x", "--for", "0.1"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "serve", "check", "record", "replay", "backtest"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command has its help, on standard output; `check` tells what its exit codes mean."""
    with pytest.raises(SystemExit) as ended:
        main([*([command] if command else []), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "exit codes:" in text if command == "check" else "usage:" in text
