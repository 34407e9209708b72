"""The backtest over a real Prometheus whose storage holds the recordings, against the recordings replayed directly."""

from __future__ import annotations

import dataclasses
import io
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from exporter import promhistory
from exporter.__main__ import main
from exporter.backtest import Wanted, collect, instant_of, run, seconds_of
from exporter.config import backend
from exporter.model import AskWhen, Limits
from exporter.page import PageParser
from exporter.promhistory import HistoryError, NoSeriesError, quoted
from exporter.recording import read_lines, replay
from exporter.runtimes import builtin
from exporter.stands import End, Stand, Tally, Tracker
from stallwatch.settings import SettingsError
from tests.exporter.servers import Script, answer, dribble, hold, once, read_request, scripted
from tests.prometheus import prometheus
from tests.tools import run_tool

RECORDINGS = Path(__file__).parent.parent / "recordings"
VLLM = builtin()["vllm"]
LIMITS = backend("test", "http://127.0.0.1", VLLM, {}).limits
PLAYED = (
    "03-long-prefill",
    "04-single-huge-step",
    "05-freeze-while-busy",
    "06-freeze-while-idle",
    "08-killed-engine",
    "10-dp2-one-frozen",
    "11-multi-api-idle-restart",
    "12-sleep-mode",
)
HOSTILE = 'a"b\\c\n{x="}"} 1|é'
RANGE_SECONDS = 3600.0
BEGAN = float(int(time.time()) - 3 * 3600)
"""When the recordings began, for Prometheus: so recent that it keeps them."""


def labelled(line: str, labels: str, t: float) -> str:
    """A line of a page as Prometheus would store it: with its target's labels and the instant of its scrape."""
    head, _, value = line.rpartition(" ")
    name, brace, own = head.partition("{")
    inner = own.removesuffix("}") + "," if brace else ""
    return f"{name}{{{inner}{labels}}} {value} {BEGAN + t:.3f}\n"


def stored(pages: Mapping[float, str | None], labels: str) -> Iterator[str]:
    """What a Prometheus stores of these pages; None is a scrape that failed."""
    for t, page in pages.items():
        yield labelled(f"up {int(page is not None)}", labels, t)
        for line in (page or "").splitlines():
            if line and not line.startswith("#"):
                yield labelled(line, labels, t)


@cache
def recorded(name: str) -> Mapping[float, str | None]:
    """The pages of a recording, by the second at which each was read."""
    lines = read_lines(RECORDINGS / f"{name}.jsonl.gz")
    return {line["t"]: line["body"] if line["status"] == 200 else None for line in lines}


def page(steps: Sequence[float], running: float = 2, more: str = "", model: str = "m", rank: str = "engine") -> str:
    """A small page, one rank for each number of steps."""
    text = more
    for number, value in enumerate(steps):
        labels = f'{rank}="{number}",model_name={quoted(model)}'
        text += f"vllm:iteration_tokens_total_count{{{labels}}} {value}\n"
        text += f"vllm:num_requests_running{{{labels}}} {running}\n"
    return text


THREE = {float(t): page([t, min(t, 20), 7 if t < 30 else t]) for t in range(60)}
"""Rank 0 works, rank 1 stands from second 20 to the end, rank 2 from the start to second 30."""
SLOW = {90.0 * n: page([min(n, 4)]) for n in range(10)}
JOINED = {
    float(t): page([5]).replace('engine="0"', 'engine="1"').replace(" 5", f" {t}") + page([5]) * (30 <= t < 45)
    for t in range(60)
}
"""Rank 1 works; rank 0 joins it at second 30, stands, and is gone at second 45."""
SHADOWED = {t: text.replace("engine=", "exported_engine=") for t, text in THREE.items()}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus that holds all of it."""
    folder = tmp_path_factory.mktemp("history")
    text = folder / "pages.om"
    with text.open("w", encoding="utf-8") as file:
        for name in PLAYED:
            file.writelines(stored(recorded(name), f'job="vllm",instance="{name}"'))
        file.writelines(stored(THREE, 'job="vllm",instance="three",backend="gb10-a"'))
        named = {float(t): page([t, min(t, 20)], model=HOSTILE) for t in range(60)}
        file.writelines(stored(named, f"job={quoted(HOSTILE)},instance={quoted(HOSTILE)}"))
        file.writelines(stored(SHADOWED, 'job="other",instance="shadowed",engine="vllm"'))
        file.writelines(line for line in stored(JOINED, 'job="other",instance="joined"') if not line.startswith("up"))
        file.writelines(stored(SLOW, 'job="other",instance="slow"'))
        file.write("# EOF\n")
    made = run_tool("promtool", "tsdb", "create-blocks-from", "openmetrics", text, folder / "data")
    assert made.returncode == 0, made.stdout
    with prometheus("global: {scrape_interval: 1h}\n", folder) as running:
        yield running.url


def wanted(url: str, selector: str | None = None, **changes: Any) -> Wanted:
    """A backtest of an hour from the recordings' beginning."""
    asked = Wanted(url, VLLM, BEGAN - 1, BEGAN + RANGE_SECONDS, selector=selector)
    return dataclasses.replace(asked, **changes)


def instance(name: str) -> str:
    """The matcher for one of them."""
    return f"instance={quoted(name)}"


def tracked(pages: Mapping[float, str | None], limits: Limits = LIMITS) -> Tally:
    """The same clocks over pages without a Prometheus between."""
    tally = Tally([60.0])
    tracker = Tracker("it", PageParser(VLLM), limits, tally)
    tracker.take((BEGAN + t, (text or "").encode()) for t, text in pages.items())
    tracker.finish()
    return tally


def plain(stands: Sequence[Stand]) -> list[tuple[Any, ...]]:
    """Stands without their server's name, to the thousandth of a second that Prometheus keeps."""
    return [
        (round(s.seconds, 2), round(s.at_most_seconds, 2), round(s.start, 2), s.rank, s.running, s.waiting, s.end)
        for s in stands
    ]


def of_replay(name: str) -> list[float]:
    """The lengths of the stands of the worst rank as `replay` prints them, with nothing asked."""
    limits = dataclasses.replace(LIMITS, ask_when=AskWhen.NEVER, poll_interval_seconds=1.0)
    lengths, before = [], 0.0
    for step in replay(read_lines(RECORDINGS / f"{name}.jsonl.gz"), PageParser(VLLM), limits):
        now = step.row["stalled_seconds"] or 0.0
        assert isinstance(now, float)
        if now < before:
            lengths.append(before)
        before = now
    return sorted([*lengths, *([before] if before else [])], reverse=True)


@pytest.mark.parametrize("name", PLAYED)
def test_history_gives_what_the_recording_gives(history: str, name: str) -> None:
    """Through Prometheus and back nothing is lost: each stand, its start and its end are those of the pages."""
    _, found = collect(wanted(history, instance(name)))
    direct = tracked(recorded(name))
    assert plain(found.top()) == plain(direct.top())
    assert (found.pages, found.failed_scrapes, found.restarts) == (direct.pages, direct.failed_scrapes, direct.restarts)
    assert found.longest_prefill_seconds == pytest.approx(direct.longest_prefill_seconds, abs=0.01)
    assert found.pages >= 20


@pytest.mark.parametrize("name", [name for name in PLAYED if name != "10-dp2-one-frozen"])
def test_stands_are_as_long_as_replay_says(history: str, name: str) -> None:
    """Up to one scrape: Prometheus's instant is the beginning of a scrape, a replay knows its end too."""
    _, found = collect(wanted(history, instance(name)))
    longest = max((stand.seconds for stand in found.top()), default=0.0)
    assert longest == pytest.approx(max(of_replay(name), default=0.0), abs=2 * max(found.interval_seconds, 1.0))


@pytest.mark.parametrize(
    ("name", "least", "most", "end"),
    [
        ("03-long-prefill", 0, 4, None),  # KV use rises all the time: no stand to speak of
        ("04-single-huge-step", 10, 16, End.PROGRESS),  # one healthy step of 12 s
        ("05-freeze-while-busy", 24, 27, End.PROGRESS),  # 25 s of SIGSTOP: thawed, it looks like a long step
        ("10-dp2-one-frozen", 20, 23, End.PROGRESS),  # one rank of two
    ],
)
def test_the_longest_stand(history: str, name: str, least: float, most: float, end: End | None) -> None:
    """What was true in the recording is what the history tells."""
    _, found = collect(wanted(history, instance(name)))
    longest = found.top()[0] if found.longest else None
    assert least <= (longest.at_most_seconds if longest else 0) <= most
    if end:
        assert longest is not None
        assert longest.end is end


def test_a_prefill_is_counted_apart(history: str) -> None:
    """Prompts of 15,000 tokens: only KV use rose for seconds, and no limit counts it as a stand."""
    _, found = collect(wanted(history, instance("03-long-prefill"), limits=[3.0, 60.0]))
    assert found.prefills == 3
    assert found.longest_prefill_seconds >= 3
    assert found.reached[0].prefills >= 1
    assert found.reached[0].stands == 0


def test_a_restart_in_the_range(history: str) -> None:
    """The killed engine came back as a new process: seen with a start time, and without one by its counters."""
    for name in ("08-killed-engine", "11-multi-api-idle-restart"):
        _, found = collect(wanted(history, instance(name)))
        assert found.restarts == 1
    assert found.failed_scrapes


def test_three_ranks_are_judged_each(history: str) -> None:
    """A working rank hides nobody; the target's own label `backend` finds it."""
    _, found = collect(wanted(history, backend="gb10-a", limits=[20, 35]))
    assert plain(found.top()) == [
        (39.0, 39.0, BEGAN + 20, "1", 2.0, 0.0, End.OPEN),
        (29.0, 30.0, BEGAN, "2", 2.0, 0.0, End.PROGRESS),
    ]
    assert [row.stands for row in found.reached] == [2, 1]
    assert [row.by_end[End.PROGRESS] for row in found.reached] == [1, 0]
    assert found.longest_healthy_seconds == 30
    assert found.busy_seconds == pytest.approx(59)


def test_a_target_label_that_shadows_the_ranks(history: str) -> None:
    """Prometheus renames the page's `engine` if the target has one: the ranks are found all the same."""
    _, found = collect(wanted(history, instance("shadowed")))
    assert [(stand.rank, stand.seconds) for stand in found.top()] == [("1", 39.0), ("2", 29.0)]


def test_a_rank_that_joins_and_leaves(history: str) -> None:
    """Series that begin later are put in the order of time, without `up` too; what vanishes has not moved."""
    _, found = collect(wanted(history, instance("joined")))
    assert plain(found.top()) == [(14.0, 14.0, BEGAN + 30, "0", 2.0, 0.0, End.GAP)]
    assert (found.pages, found.restarts, found.proxies) == (60, 0, 0)


def test_hostile_names(history: str) -> None:
    """Quotes, braces, line ends and bars in names: found by name, shown on one line, in one cell."""
    text = run(wanted(history, backend=HOSTILE))
    rows = [line for line in text.splitlines() if line.endswith("|") and "| end of data |" in line]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 7
    assert not any("\x00" <= c < " " for c in text.replace("\n", ""))


def test_several_servers_in_one_table(history: str) -> None:
    """Each server has clocks of its own, and the counts are of all of them."""
    _, both = collect(wanted(history, 'job="other",instance=~"slow|shadowed"'))
    _, slow = collect(wanted(history, instance("slow")))
    _, shadowed = collect(wanted(history, instance("shadowed")))
    assert both.pages == slow.pages + shadowed.pages
    assert both.stands == slow.stands + shadowed.stands == 3
    assert plain(both.top())[0] == plain(slow.top())[0]


def test_rare_scrapes_say_what_they_cannot_show(history: str) -> None:
    """Each 90 s: a stand of five intervals is no gap, and the table says what is too short to be seen."""
    text = run(wanted(history, instance("slow")))
    assert "| 2" in text
    assert "Pages 90 s apart cannot show what is shorter: limits of up to 180 s" in text
    _, found = collect(wanted(history, instance("slow")))
    assert [stand.seconds for stand in found.top()] == [450.0]


@pytest.mark.parametrize("seconds", [7.3, 20.0])
def test_chunks_leave_no_seam(history: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the range is cut, each page is read once, and a stand over a cut is one stand."""
    once_read = collect(wanted(history, instance("three"), end=BEGAN + 70))[1]
    monkeypatch.setattr(promhistory, "CHUNK_SECONDS", seconds)
    told: list[float] = []
    cut = collect(wanted(history, instance("three"), end=BEGAN + 70), told.append)[1]
    assert cut.pages == once_read.pages == 60
    assert cut.top() == once_read.top()
    assert len(told) == -(-71 // seconds)
    assert told == sorted(told)


def test_nothing_there(history: str) -> None:
    """No such server, or none in this range: one line that says what was looked for."""
    with pytest.raises(NoSeriesError, match="no series of vllm in this range"):
        collect(wanted(history, instance("nobody")))
    with pytest.raises(NoSeriesError, match=r'nor \{backend="nobody"}; see --selector'):
        collect(wanted(history, backend="nobody"))
    with pytest.raises(NoSeriesError):
        collect(wanted(history, instance("three"), start=BEGAN - 9000, end=BEGAN - 8000))
    with pytest.raises(NoSeriesError, match="no series of sglang"):
        collect(wanted(history, instance("three"), runtime=builtin()["sglang"]))


def test_prometheus_says_why_it_refuses(history: str) -> None:
    """Its own words, on one line."""
    with pytest.raises(HistoryError, match="parse error") as raised:
        collect(wanted(history, "job=~"))
    assert "\n" not in str(raised.value)


def test_the_command(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table on standard output, named an upper bound; without a terminal no bar."""
    common = ["--prometheus", history, "--selector", "{" + instance("05-freeze-while-busy") + "}"]
    common += ["--since", "1h", "--until", str(BEGAN + 3000), "--stuck-after", "60,10"]
    assert main(["backtest", *common]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("# Backtest of {instance=")
    assert ": an upper bound\n" in printed.out
    rows = [line for line in printed.out.splitlines() if line.startswith("|")]
    assert rows[2].startswith("| 10 s | 1 | 1 | 0 | 0 | 2")
    assert rows[3].startswith("| 60 s | 0 | 0 | 0 | 0 | 0 s |")
    assert "a limit of twice that is 5" in printed.out
    assert main(["backtest", *common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "upper_bound"
    assert found["limits"][0]["stands"] == 1
    assert found["longest"][0]["end"] == "progress"
    assert found["suggested_stuck_after_seconds"] >= 2 * found["longest_healthy_seconds"]


def test_a_bar_for_a_person(history: str) -> None:
    """It ends at the whole and is wiped away."""
    out = io.StringIO()
    run(wanted(history, instance("three"), start=BEGAN - 7200), progress=out)
    assert "[##########....................]  33%" in out.getvalue()
    assert "100%" in out.getvalue()
    assert out.getvalue().endswith("\r\033[K")


HTML = b"<!doctype html><title>Sign in</title>"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (hold, "no complete answer by the deadline"),
        (dribble(answer(body=b'{"status":"success","data":[]}'), pause=0.2), "no complete answer by the deadline"),
        (once(answer(body=HTML)), "status 200, and no answer of Prometheus's API"),
        (once(answer("401 Unauthorized", b"no")), "status 401, and no answer of Prometheus's API"),
        (once(answer("302 Found", location="http://example.org/")), "redirects to another host"),
        (once(answer(body=b"[" * 100_000)), "no answer of Prometheus's API"),
        (once(answer(body=b"[1]")), "no answer of Prometheus's API"),
        (once(answer("422 x", b'{"status":"error","error":"no\\nway \\u001b[2J"}')), "no way"),
        (once(answer("500 x", b'{"status":"error"}')), "status 500"),
        (once(answer(body=b'{"status":"success","data":[{}]}')), "an answer in an unknown shape"),
    ],
    ids=["hangs", "dribbles", "html", "401", "elsewhere", "deep", "list", "refuses", "no-words", "shape"],
)
def test_what_is_no_prometheus(script: Script, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slow, hanging or wrong server is one line and exit code 2, within the time of one query."""
    with scripted(script) as url:
        began = time.monotonic()
        assert main(["backtest", "--prometheus", url, "--backend", "a", "--timeout", "0.5", "--since", "1h"]) == 2
        assert time.monotonic() - began < 3
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert "\x1b" not in error


def limited(most_seconds: float, asked: list[float]) -> Script:
    """A Prometheus that refuses longer ranges, as one does under --query.max-samples; else it holds nothing."""

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            parts = urlsplit(request.split()[1].decode())
            if parts.path.endswith("series"):
                connection.sendall(answer(body=b'{"status":"success","data":[{"__name__":"x"}]}'))
                continue
            seconds = float(parse_qs(parts.query)["query"][0].rpartition("[")[2].removesuffix("ms]")) / 1000
            asked.append(seconds)
            if seconds > most_seconds:
                refusal = b"query processing would load too many samples into memory in query execution"
                body = b'{"status":"error","errorType":"execution","error":"' + refusal + b'"}'
                connection.sendall(answer("422 Unprocessable Entity", body))
            else:
                body = b'{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["half is away"]}'
                connection.sendall(answer(body=body))

    return script


def test_too_many_samples_are_asked_for_in_smaller_parts() -> None:
    """The same range in shorter queries; what is too much in a minute is an error. Warnings are handed on."""
    asked: list[float] = []
    with scripted(limited(1000, asked)) as url:
        text = run(wanted(url, "a='b'"))
        assert asked == [3601, 901, 901, 901, 901, 2]
        assert "Prometheus warns: half is away" in text
        assert "nothing can be said" in text
    huge = once(answer(body=b'{"status":"success","data":["' + b"x" * promhistory.MAX_ANSWER_BYTES + b'"]}'))
    with scripted(huge) as url, pytest.raises(HistoryError, match="more than 33554432 bytes; name fewer"):
        collect(wanted(url, "a='b'"))
    with scripted(limited(10, asked)) as url, pytest.raises(HistoryError, match="name fewer servers by --selector"):
        collect(wanted(url, "a='b'"))


STILL = page([5])
AWAKE, ASLEEP = ('vllm:engine_sleep_state{sleep_state="awake"} ' + value + "\n" for value in ("1", "0"))
STARTED = "process_start_time_seconds "


@pytest.mark.parametrize(
    ("pages", "stands"),
    [
        # It moves on every page.
        ({t: page([t]) for t in range(20)}, []),
        # Nothing is in flight.
        (dict.fromkeys(range(20), page([5], running=0)), []),
        # It stands to the end of what there is.
        (dict.fromkeys(range(20), STILL), [(19, End.OPEN)]),
        # Failed scrapes in a stand add nothing if the pages around them are the same.
        ({t: (None if 5 <= t < 8 else STILL) for t in range(20)}, [(19, End.OPEN)]),
        # A gap with other work behind it ends the stand without progress being seen in it.
        (
            {**dict.fromkeys(range(9), STILL), **dict.fromkeys(range(200, 205), page([5], running=3))},
            [(8, End.GAP), (4, End.OPEN)],
        ),
        # A long gap with the same page behind it adds none of its time.
        ({**dict.fromkeys(range(9), STILL), **dict.fromkeys(range(200, 205), STILL)}, [(12, End.OPEN)]),
        # A new process: nobody knows whether the old one would have moved.
        ({t: page([5], more=f"{STARTED}{1 if t < 9 else 5000}\n") for t in range(12)}, [(8, End.NEW_PROCESS)]),
        # It stood long enough to be asked about; here nobody asked, so that a single step is its own.
        ({**dict.fromkeys(range(71), STILL), 71: page([6]), 72: page([7])}, [(70, End.PROGRESS)]),
        # It was put to sleep: on purpose.
        ({t: page([5], more=AWAKE if t < 9 else ASLEEP) for t in range(12)}, [(8, End.ON_PURPOSE)]),
        # Two servers behind one address: no stand is longer than the alternation.
        ({t: page([5], more=f"{STARTED}{1 + 5000 * (t % 2)}\n") for t in range(12)}, []),
    ],
)  # fmt: skip
def test_how_a_stand_ends(pages: Mapping[float, str | None], stands: list[tuple[float, End]]) -> None:
    """Each way, over pages a second apart."""
    assert [(stand.seconds, stand.end) for stand in tracked(pages).top()] == stands


def test_a_proxy_is_said() -> None:
    """Start times that go to and fro: the first change is a new process, each way back begins the clocks anew."""
    tally = tracked({t: page([5], more=f"{STARTED}{1 + 5000 * (t % 2)}\n") for t in range(12)})
    assert (tally.restarts, tally.proxies) == (1, 5)


def test_unusable_pages_are_counted() -> None:
    """A server without the series leaves nothing to judge."""
    tally = tracked(dict.fromkeys(range(5), "python_info 1\n"))
    assert (tally.pages, tally.unusable_pages, tally.stands) == (0, 5, 0)


def test_only_the_longest_are_kept() -> None:
    """A thousand stands need the memory of ten, and every one of them counts."""
    tally = Tally([60.0, 500.0])
    for n in range(1000):
        tally.add(Stand(float(n), float(n), 0.0, "it", "0", 1, 0, End.PROGRESS if n < 900 else End.OPEN))
    assert [stand.seconds for stand in tally.top()] == [float(n) for n in range(999, 989, -1)]
    assert [row.stands for row in tally.reached] == [940, 500]
    assert tally.reached[1].by_end[End.OPEN] == 100
    assert tally.longest_healthy_seconds == 899


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2592000), ("1h30m", 5400), ("90", 90), ("0.5", 0.5)])
def test_durations(text: str, seconds: float) -> None:
    """As Prometheus writes them, or plain seconds."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1", "0", "0d", "nan", "inf", "1h-3m", "9999999y"])
def test_what_is_no_duration(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="cannot be understood"):
        seconds_of(text)


def test_instants() -> None:
    """Unix seconds or a time; UTC where it says nothing else."""
    assert instant_of("2026-12-01T04:00:00Z") == instant_of("2026-12-01T04:00:00") == instant_of("1796097600")
    assert instant_of("2026-12-01T05:00:00+01:00") == 1796097600
    for text in ("yesterday", "nan", "1e400", "-5"):
        with pytest.raises(ValueError, match="cannot be understood"):
            instant_of(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prometheus": "http://u:p@127.0.0.1"}, "--prometheus must hold no credentials; use --bearer-token-file"),
        ({"runtime": builtin()["none"]}, "leaves no history"),
        ({"start": BEGAN + 1e6}, "--until must be later"),
        ({"token_file": "/nonexistent"}, "/nonexistent"),
        ({"prometheus": "http://127.0.0.1:1"}, "connection refused"),
    ],
)
def test_what_a_user_can_get_wrong(changes: Mapping[str, Any], words: str) -> None:
    """One line that names it."""
    with pytest.raises(SettingsError, match=words.replace(".", r"\.")):
        collect(wanted("http://127.0.0.1:1", "a='b'", **changes))


@pytest.mark.parametrize("argv", [["--stuck-after", "60,soon"], ["--since", "long"], ["--until", "then"], []])
def test_bad_flags_are_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    given = ["--backend", "a"] if argv else []
    with pytest.raises(SystemExit, match="2"):
        main(["backtest", "--prometheus", "http://127.0.0.1:1", *given, *argv])
    assert capsys.readouterr().err.count("\n") == 1


def test_the_token_is_sent(tmp_path: Path) -> None:
    """From its file to the header, and nowhere else."""
    seen: list[bytes] = []

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            seen.append(request)
            connection.sendall(answer("403 Forbidden", b"x"))

    path = tmp_path / "token"
    path.write_text("sesame\n")
    with scripted(script) as url, pytest.raises(HistoryError, match="status 403"):
        collect(wanted(url, "a='b'", token_file=str(path)))
    assert b"Authorization: Bearer sesame\r\n" in seen[0]
