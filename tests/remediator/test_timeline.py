"""The timeline: pure parts by tables; the whole on a real Prometheus beside a journal that is still being written."""

from __future__ import annotations

import io
import re
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from remediator import __main__ as program
from remediator import story
from remediator.attempt import Attempt
from remediator.config import Config
from remediator.document import Wanted, escaped, folded
from remediator.model import Decision, Hold, Reason, Verb
from remediator.plot import Mark, Plot, draw
from remediator.promql import MOST_POINTS, Prometheus, PrometheusFailed, Series, quoted, step_for
from remediator.story import Line
from remediator.timeline import backend_name, duration, instant, write
from stallwatch.settings import SettingsError
from tests.prometheus import Prometheus as Api
from tests.prometheus import free_port, prometheus
from tests.remediator.fakes import START, World, build, firing, view
from tests.tools import run_tool

ROOT = Path(__file__).parents[2]
NAME = "demo"
HOSTILE = 'it | says "stop"\n<script> `x` \\| [a](b) \u202e*'
CELL = r"(?:[^|\\]|\\.)*"


def cells(row: str) -> list[str]:
    """The cells of a row as Markdown splits it: a pipe with a backslash before it is none."""
    assert re.fullmatch(rf"\|({CELL}\|)+", row), row
    return [cell.strip() for cell in re.findall(rf"({CELL})\|", row[1:])]


# The pure parts.


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("6h", 21600), ("2d", 172800), ("1h30m", 5400), ("90s", 90), ("1w", 604800)]
)
def test_durations_as_prometheus_writes_them(text: str, seconds: float) -> None:
    """Units may be joined, greatest first."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "0s", "-6h", "30m1h", "6 h", "1e3s", "999999999y", "٣h"])
def test_no_durations(text: str) -> None:
    """What Prometheus would not take, or no span at all."""
    with pytest.raises(SettingsError, match="--since"):
        duration(text)


@pytest.mark.parametrize(
    "text", ["2027-01-15T08:00:00Z", "2027-01-15 08:00:00", "2027-01-15T10:00:00+02:00", "1800000000", "1800000000.0"]
)
def test_times(text: str) -> None:
    """ISO 8601, UTC unless it says otherwise, or Unix seconds."""
    assert instant(text) == START


@pytest.mark.parametrize(
    "text", ["", "yesterday", "99999999999999", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z", "nan"]
)
def test_no_times(text: str) -> None:
    """One line says so."""
    with pytest.raises(SettingsError, match="--until"):
        instant(text)


@pytest.mark.parametrize("text", ["", "..", 'a"} or vector(1) #', "a b", "a" * 101, "a\n"])
def test_no_names(text: str) -> None:
    """Only what a configuration allows is a name."""
    with pytest.raises(SettingsError, match="--backend"):
        backend_name(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [("gb10-a", '"gb10-a"'), ('a"b', '"a\\"b"'), ("a\\", '"a\\\\"'), ("a\nb", '"a\\nb"')],
)
def test_quoting_of_label_values(value: str, text: str) -> None:
    """Nothing in a value can end the string."""
    assert quoted(value) == text


@pytest.mark.parametrize("seconds", [1, 600, 21600, 172800, 2_592_000])
def test_a_long_span_is_read_in_longer_steps(seconds: float) -> None:
    """The number of points is bounded, whatever the span."""
    step = step_for(START, START + seconds)
    assert step >= 1
    assert seconds / step <= MOST_POINTS


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("plain text_with_words", "plain text_with_words"),
        ("a|b", "a\\|b"),
        ("a\\|b", "a\\\\\\|b"),
        ("two\nlines\r\n and\ttabs", "two lines and tabs"),
        ("<b>&amp;", "&lt;b>&amp;amp;"),
        ("[x](y) `z` *w*", "\\[x\\](y) \\`z\\` \\*w\\*"),
        ("left\u202eright\x00", "left right"),
        ("x" * 701, "x" * 700 + "…"),
    ],
)
def test_escaping(text: str, becomes: str) -> None:
    """A value stays in its cell, on one line, and is neither Markdown nor HTML."""
    assert escaped(text) == becomes
    assert len(cells(f"| {escaped(text)} |")) == 1


def alert(at: float, what: str = "alert X") -> Line:
    """A delivery."""
    return Line(at, "journal", "alert", what, what)


OTHER = Line(15, "journal", "step", "attempt 1 called")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([alert(0)], [(0, "")]),
        ([alert(0), alert(300)], [(0, " (one more at 1970-01-01 00:05:00)")]),
        ([alert(n * 10.0) for n in range(18)], [(0, " (17 more deliveries until 1970-01-01 00:02:50)")]),
        ([alert(0), OTHER, alert(30)], [(0, " (one more at 1970-01-01 00:00:30)"), (15, "")]),
        ([alert(0), alert(1, "alert Y"), alert(2)], [(0, ""), (1, ""), (2, "")]),
        ([alert(0), alert(7201)], [(0, ""), (7201, "")]),
        ([OTHER, OTHER], [(15, ""), (15, "")]),
    ],
    ids=["one", "two", "many", "others between", "another of its kind ends it", "too far apart", "never folded"],
)
def test_folding(lines: list[Line], told: list[tuple[float, str]]) -> None:
    """The first of what repeats itself stays, with how many more and until when."""
    assert [(line.at, more) for line, more in folded(lines)] == told


def verdict(at: float, word: str, source: str = "prometheus") -> Line:
    """A change of verdict."""
    return Line(at, source, "verdict", f"verdict {word}", None, word)


def asked(at: float, word: str, source: str = "prometheus") -> Line:
    """A short request that ended."""
    return Line(at, source, "ask", f"short request: {word}", None, word)


@pytest.mark.parametrize(
    ("told", "read", "left"),
    [
        ([], [verdict(5, "busy")], [5]),
        ([verdict(100, "stuck", "evidence")], [verdict(115, "stuck")], [100]),
        ([verdict(100, "stuck", "evidence")], [verdict(115, "stalled")], [100, 115]),
        ([verdict(100, "stuck", "evidence")], [verdict(200, "stuck")], [100, 200]),
        ([verdict(100, "stuck", "evidence")], [verdict(90, "stuck")], [90, 100]),
        (
            [verdict(10, "stalled", "evidence"), verdict(12, "stalled", "evidence"), verdict(20, "stuck", "evidence")],
            [verdict(15, "stalled"), verdict(25, "stuck"), verdict(30, "stalled")],
            [10, 12, 20, 30],
        ),
        ([asked(100, "unanswered", "evidence")], [asked(110, "unanswered"), asked(140, "unanswered")], [100, 140]),
        ([asked(100, "answered", "evidence")], [asked(110, "unanswered")], [100, 110]),
    ],
    ids=["nothing told", "later by a scrape", "another verdict", "too late", "too early", "in order", "asks", "result"],
)
def test_merging(told: list[Line], read: list[Line], left: list[float]) -> None:
    """What evidence told is not told again from Prometheus, a scrape later; everything else is."""
    assert [line.at for line in story.merged(told, read, 5)] == left


@pytest.mark.parametrize(
    "document",
    [
        None,
        3,
        [],
        {},
        {"history": 3},
        {"history": [3, {}, {"at": "x"}, {"at": float("nan")}, {"at": True}, {"at": 10**400}]},
    ],
)
def test_evidence_in_another_shape_tells_nothing(document: object) -> None:
    """It was saved as somebody sent it."""
    event = {"kind": "attempt", "at": 1.0, "id": 1, "driver": "docker", "identity_before": None}
    lines = story.of_journal([{**event, "evidence": document, "evidence_output": None}])
    assert [line.what for line in lines] == ["attempt 1 claimed, driver docker"]


def test_verdicts_of_series() -> None:
    """Changes only; a gap is told; stuck knows when the stall began."""
    busy = Series({"verdict": "busy"}, [(0, 1), (5, 1), (40, 1)])
    stuck = Series({"verdict": "stuck"}, [(10, 1), (15, 1)])
    lines = story.of_verdicts([busy, stuck], {10: 180.0}, 5)
    assert [(line.at, line.what) for line in lines] == [
        (0, "verdict busy (the first reading)"),
        (10, "verdict stuck"),
        (20, "no verdict any more: nobody watches it"),
        (40, "verdict busy (the first reading)"),
    ]
    assert lines[1].began_at == -170.0


def test_alerts_of_series() -> None:
    """Each run of samples is one alert; what still fires at the end has not ended."""
    series = Series({"alertname": "X", "alertstate": "firing"}, [(0, 1), (5, 1), (60, 1)])
    lines = story.of_alerts([series], 5, 60)
    assert [(line.at, line.what) for line in lines] == [
        (0, "alert X is firing"),
        (10, "alert X fires no more"),
        (60, "alert X is firing"),
    ]


# The plot.


def text_of(svg: str) -> str:
    """Parse it; all that stands in it."""
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return " ".join(root.itertext())


@pytest.mark.parametrize(
    "plot",
    [
        Plot("<&a", START, START + 1, 1),
        Plot("a", START, START + 600, 5, [(START, 0.0)], [(START, 0.0)], [(START, 180.0)]),
        Plot("a", START, START + 3e7, 7000, [(START, 1e9), (START + 7000, 1e-9)], [(START + 1e6, 1e6)]),
        Plot("a", START, START + 60, 1, marks=[Mark(START + n, "<b>") for n in range(40)]),
    ],
    ids=["nothing", "one value", "a year", "many marks"],
)
def test_a_plot_is_well_formed(plot: Plot) -> None:
    """Title, description and axes are there, whatever there is to show."""
    svg = draw(plot)
    said = text_of(svg)
    assert f"Work rate and stalled seconds of {plot.name}" in said
    assert "work rate (engine steps," in said
    assert ("and 28 more" in said) == (len(plot.marks) > 12)
    assert "nan" not in svg
    assert "prefers-color-scheme: dark" in svg


# The whole, on a real Prometheus.


@dataclass
class Scene:
    """A journal that is open, a Prometheus that runs."""

    world: World
    url: str
    folder: Path

    def write(self, backend: str = NAME, url: str | None = "", config: Config | None = None, **named: Any) -> str:
        """The document of half an hour; `url` None: Prometheus is not asked."""
        out = io.StringIO()
        wanted = Wanted(backend, START - 900, START + 900, self.url if url == "" else url, **named)
        write(config or self.world.config, wanted, out)
        return out.getvalue()


def samples() -> Iterator[str]:
    """Twenty minutes, every 5 s: it stalls at -185 s, is stuck at -2 s, restarted at 3 s, and well at 10 s."""
    words = ("busy", "stalled", "stuck", "starting", "idle", "down")
    for at in range(-600, 601, 5):
        word = next(w for end, w in [(-125, "busy"), (-2, "stalled"), (8, "stuck"), (10, "starting"), (9e9, "busy")]
                    if at < end)  # fmt: skip
        frozen = -185 <= at < 10
        one = f'backend="{NAME}"'
        values = {
            f"stalled_seconds{{{one}}}": at + 185 if frozen else 0,
            f"engine_progress_rate{{{one}}}": 0 if frozen else 20,
            f"restart_detected{{{one}}}": int(10 <= at < 310),
            f"stallwatch_backend_stuck_after_seconds{{{one}}}": 180,
            f"stallwatch_backend_work_total{{{one}}}": 20 * (at + 600 if at < -185 else 415 + max(0, at - 10)),
            f"stallwatch_backend_restarts_total{{{one}}}": int(at >= 10),
            f'stallwatch_backend_asks_total{{{one},result="unanswered"}}': (at >= -95) + (at >= -30),
            f'stallwatch_backend_asks_total{{{one},result="answered"}}': 1,
            f'stallwatch_remediation_restarts_seen_total{{{one},by="us"}}': int(at >= 60),
            f'stallwatch_remediation_restarts_seen_total{{{one},by="others"}}': 0,
            f'stallwatch_remediation_decisions_total{{{one},decision="act",reason="act"}}': int(at >= 0),
            f"stallwatch_remediation_budget_remaining{{{one}}}": 3 - (at >= 3),
            f"backend:stallwatch_backend_available:max{{{one}}}": int(word == "busy"),
        }
        values |= {f'stallwatch_backend_verdict{{{one},verdict="{w}"}}': int(w == word) for w in words}
        if 0 <= at < 10:
            values[f'ALERTS{{{one},alertname="ModelServerStuck",alertstate="firing"}}'] = 1
        for series, value in values.items():
            yield f"{series} {value} {START + at:.0f}\n"


def attempted(folder: Path) -> World:
    """A journal with a whole attempt, refusals, a hold with hostile words, and a restart by somebody else."""
    world = build(folder / "journal.db", {NAME: "g"}, evidence_command=(sys.executable, "-c", "print('stack')"))
    rank = {"rank": "0", "stalled_seconds": 183.0, "asks": [{"sent_at": 1, "at": START - 97, "result": "unanswered"}]}
    history = [
        {"at": START - 130, "verdict": "stalled", "sentence": "Rank 0 stands still.", "rank": None},
        {"at": START - 2, "verdict": "stuck", "sentence": f"Proven: {HOSTILE}", "rank": rank},
    ]
    document = {"name": NAME, "history": history, "limits": {"startup_grace_seconds": 1200.0}}
    driver = world.drivers[NAME]
    world.exporters.says[NAME] = lambda: view(
        "stuck" if driver.identity == "life-1" else "busy", NAME, document=document
    )
    inbox = world.parts.journal.inbox
    claimed = world.claimed(NAME)
    (request,) = inbox.open()
    inbox.decided(request, Decision(Verb.ACT, Reason.ACT, f"{NAME} is stuck."), START)
    Attempt(world.parts, world.config.backends[NAME], claimed).begin()
    for minute in range(1, 6):
        inbox.receive([firing(NAME)], START + 60 * minute)
    world.parts.journal.holds.hold(Hold(NAME, "ada", HOSTILE, START + 400, START + 4000))
    world.parts.journal.restarts.add(NAME, "life-2", "life-3", START + 500, ours=False)
    return world


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("timeline")
    (folder / "pages.om").write_text("".join(sorted(samples(), key=lambda line: line.partition("}")[0])) + "# EOF\n")
    made = run_tool("promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "pages.om", folder / "data")
    assert made.returncode == 0, made.stdout
    world = attempted(folder)
    try:
        with prometheus("global: {scrape_interval: 1h}\n", folder) as running:
            yield Scene(world, running.url, folder)
    finally:
        world.close()


def rows(document: str) -> list[list[str]]:
    """The timeline's rows; each has a time, a source and what happened, and they are in order."""
    lines = document.splitlines()
    found = [cells(row) for row in lines[lines.index("| time (UTC) | source | what |") + 2 :]]
    assert all(len(row) == 3 and re.fullmatch(r"2027-01-15 \d\d:\d\d:\d\d", row[0]) for row in found)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    return found


def test_both_sources_are_one_story(scene: Scene) -> None:
    """Verdicts and asks once, alerts, the decision and its reason, steps, the outcome, in the order of time."""
    document = scene.write()
    told = rows(document)
    wanted = [
        ("07:50:00", "prometheus", "verdict busy (the first reading)"),
        ("07:57:50", "evidence", 'verdict stalled: "Rank 0 stands still."'),
        ("07:58:23", "evidence", "short request to rank 0: unanswered"),
        ("07:59:30", "prometheus", "short request: unanswered"),
        ("07:59:58", "evidence", 'verdict stuck: "Proven: it \\| says'),
        (
            "08:00:00",
            "journal",
            "alert ModelServerStuck delivered: firing, asks for a restart (5 more deliveries until",
        ),
        ("08:00:00", "journal", 'decision: act (act): "demo is stuck."'),
        ("08:00:00", "journal", "attempt 1 claimed, driver command, identity life-1"),
        ("08:00:00", "prometheus", "alert ModelServerStuck is firing"),
        ("08:00:00", "journal", "attempt 1 evidence saved"),
        ("08:00:00", "journal", "attempt 1 driver called"),
        ("08:00:03", "journal", "attempt 1 driver returned"),
        ("08:00:05", "journal", "attempt 1 ended: recovered"),
        ("08:00:10", "prometheus", "the exporter sees a new server process"),
        ("08:00:10", "prometheus", "verdict busy"),
        ("08:06:40", "journal", 'held by ada until 2027-01-15 09:06:40: "it \\| says'),
        ("08:08:20", "journal", "another life of the server, NOT by the remediator: life-2 became life-3"),
    ]
    for time, source, what in wanted:
        assert [r for r in told if r[0][11:] == time and r[1] == source and r[2].startswith(what)], (what, document)
    assert sum(row[2].startswith("verdict stuck") for row in told) == 1
    assert sum("ModelServerStuck delivered" in row[2] for row in told) == 1


def test_the_head_says_what_it_comes_to(scene: Scene) -> None:
    """Where from, how many of each, and how long each part took."""
    document = scene.write()
    assert document.startswith("# Timeline of demo\n\n- Span: 2027-01-15 07:45:00 to 2027-01-15 08:15:00.")
    assert f"- Sources: the journal and Prometheus ({scene.url}), read every 1 s.\n" in document
    assert "- Missing" not in document
    assert "Alerts delivered: 6; decisions: 1; attempts: 1 (1 recovered); restarts by others: 1." in document
    (row,) = [cells(line) for line in document.splitlines() if " s | " in line and line.count("|") == 8]
    began, stuck, detected, called, restarted, well, recovered = row
    assert (began[11:], stuck[11:], detected) == ("07:56:55", "07:59:58", "183 s")
    assert (called[11:], restarted) == ("08:00:00", "2 s")
    assert (well[11:], recovered) == ("08:00:05", "5 s")


def test_the_journal_alone(scene: Scene) -> None:
    """Prometheus not asked, refusing, no Prometheus, or without data: one line says so, and the rest is there."""
    document = scene.write(url=None)
    assert "- Missing: Prometheus was not asked (--prometheus).\n" in document
    assert {row[1] for row in rows(document)} == {"journal", "evidence"}
    assert "| 183 s |" in document
    refused = scene.write(url=f"http://127.0.0.1:{free_port()}")
    assert re.search(r"- Missing: Prometheus gave nothing \(.*connection refused\)\.\n", refused)
    assert rows(refused) == rows(document)
    wrong = scene.write(url=f"{scene.url}/elsewhere")
    assert "is a Prometheus there?" in wrong


def test_prometheus_alone(scene: Scene, tmp_path: Path) -> None:
    """No journal at all: detection and recovery are still there, from the verdicts."""
    away = build(tmp_path / "journal.db")
    away.close()
    (tmp_path / "journal.db").unlink()
    document = scene.write(config=away.config)
    assert re.search(r"- Missing: the journal cannot be read \(.*does not exist\)\.\n", document)
    assert {row[1] for row in rows(document)} == {"prometheus"}
    assert (
        "| 2027-01-15 07:56:55 | 2027-01-15 08:00:00 | 185 s | not seen |  | 2027-01-15 08:00:10 | 10 s |" in document
    )


def test_neither_source(scene: Scene) -> None:
    """Nothing is known of such a backend: an error in one line, no empty document."""
    with pytest.raises(SettingsError, match=r"nothing is known of nobody: the journal has nothing.*has nothing on it"):
        scene.write("nobody")
    with pytest.raises(SettingsError, match="was not asked"):
        scene.write("nobody", url=None)


def test_the_plot(scene: Scene, tmp_path: Path) -> None:
    """Both series, the limit, and marks; the document shows it; without Prometheus the marks stay."""
    path = tmp_path / "plot.svg"
    assert f"![Work rate and stalled seconds](<{path}>)" in scene.write(plot=path)
    svg = path.read_text()
    assert all(f'<path class="{name}" d="M' in svg for name in ("rate", "stalled", "limit"))
    said = text_of(svg)
    for text in ("Stalled for at most 190 seconds. The limit is 180 seconds.", "08:00:00  restart called"):
        assert text in said
    assert "restarted by somebody else" in said
    scene.write(url=None, plot=path)
    assert "no data" in text_of(path.read_text())
    assert "proven stuck" in text_of(path.read_text())
    with pytest.raises(SettingsError, match="--plot"):
        scene.write(plot=tmp_path)


def test_a_query_that_is_refused_is_one_line(scene: Scene) -> None:
    """With Prometheus's own words."""
    server = Prometheus(scene.url)
    with pytest.raises(PrometheusFailed, match="parse error") as raised:
        server.range("sum(", START, START + 1, 1)
    assert "\n" not in str(raised.value)
    server.close()


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "ftp://a", "http://", "http://u:p@a", "http://a/?x=1", "http://a:0", "http://a b"]
)
def test_no_addresses(url: str) -> None:
    """Refused before anything is asked."""
    with pytest.raises(SettingsError, match="--prometheus"):
        Prometheus(url)


def configured(scene: Scene, folder: Path) -> str:
    """A configuration whose journal is the scene's."""
    content = yaml.safe_load((ROOT / "config" / "remediator.yml").read_text())
    content["journal_url"] = f"sqlite:///{scene.world.path}"
    path = folder / "remediator.yml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


Main = Callable[..., int]


def test_the_program(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sub-command, with every option."""
    options = ["--config.file", configured(scene, tmp_path), "--backend", NAME, "--since", "30m"]
    until = ["--until", "2027-01-15T08:15:00Z", "--prometheus", scene.url]
    assert program.main(["timeline", *options, *until, "--plot", str(tmp_path / "p.svg")]) == 0
    said = capsys.readouterr()
    assert said.out == scene.write(plot=tmp_path / "p.svg")
    assert said.err == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"--backend": "nobody"},
        {"--backend": 'x"}'},
        {"--since": "six hours"},
        {"--until": "soon"},
        {"--prometheus": "nowhere"},
        {"--plot": "/nowhere/at/all.svg"},
        {"--config.file": "/nowhere/remediator.yml"},
    ],
    ids=lambda changes: " ".join(*changes.items()),
)
def test_what_a_user_can_cause(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str]
) -> None:
    """One line on standard error, nothing on standard output, exit code 2."""
    options = {"--config.file": configured(scene, tmp_path), "--backend": NAME, "--since": "30m", "--until": f"{START}"}
    words = [word for pair in {**options, **changes}.items() for word in pair]
    assert program.main(["timeline", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"stallwatch-remediator: [^\n]+\n", said.err)


# The page.

PAGE = (ROOT / "docs" / "postmortem.md").read_text(encoding="utf-8")
QUERIES = [query.strip() for query in re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)]


def test_the_page_has_queries() -> None:
    """One for each question at least."""
    assert len(QUERIES) >= PAGE.count("\n## ") - 2 > 4


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_page_gives_data(scene: Scene, query: str) -> None:
    """On this Prometheus, with the page's instants moved to before, in and after the stall of its data."""
    moved = {"1796102296": START - 200, "1796102297": START - 200, "1796102316": START, "1796102345": START + 300}
    for there, here in moved.items():
        query = query.replace(f"@ {there}", f"@ {here:.0f}")
    assert not re.search(r"@ 1796", query)
    asked = urllib.parse.urlencode({"query": query, "time": START + 600})
    assert Api(scene.url).get(f"query?{asked}")["result"], query
