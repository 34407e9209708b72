"""Every command in the documents is run here, or says where else it is run, or why it cannot be run here.

On the line before its block: `<!-- run by: tests/FILE.py::test -->`, or `<!-- not run here: needs ... -->`. What has a
row in the table below is run here all the same.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.docs_commands import SHELL, Block, Command, all_blocks, blocks, commands, looks_like_commands, queries
from tests.docs_world import World
from tests.tools import ROOT, run_tool

BLOCKS = all_blocks()
LISTEN = " --web.listen-address 127.0.0.1:{port}"
EXPORTER, REMEDIATOR = {"exporter.yml": "exporter.yml" + LISTEN}, {"remediator.yml": "remediator.yml" + LISTEN}
TLS = {"web.yml": "{web}"}
HISTORY = {"http://prometheus:9090": "{history}"}
CHAIN = {"remediator.yml": "{chain}/remediator.yml"}
CURL = {"$TOKEN": "$(cat {chain}/webhook.token)", "http://127.0.0.1:9841": "{remediator}"}


@dataclass(frozen=True)
class Run:
    """How the commands of a page that begin so are run, and what must come of it.

    `put` replaces the page's addresses; `says` are patterns of the output; a command with `until` runs for ever: it is
    ended by `ends` when it has printed this.
    """

    page: str
    begins: str
    put: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    until: str = ""
    ends: signal.Signals = signal.SIGTERM
    early: bool = False


RUNS = [
    Run("README.md", "make run  "),
    Run(
        "README.md",
        "make test",
        {"make test": "{make} test PYTEST_ARGUMENTS='-q -p no:cacheprovider tests/test_imports.py'"},
        (r"\d+ passed",),
    ),
    Run(
        "README.md", ".venv/bin/stallwatch-exporter check", {"http://127.0.0.1:8000": "{idle}"}, ("^idle ",), early=True
    ),
    Run("README.md", "make run BACKEND="),
    Run("README.md", ".venv/bin/stallwatch-exporter --config.file", EXPORTER, until="event=started"),
    Run("README.md", ".venv/bin/stallwatch-remediator --config.file", REMEDIATOR, until="event=started"),
    Run(
        "docs/backtest.md", "stallwatch-exporter backtest --prometheus http://prometheus", HISTORY, ("# Backtest of ",)
    ),
    Run(
        "docs/backtest.md",
        "stallwatch-exporter backtest --prometheus http://127.0.0.1:8152",
        {"http://127.0.0.1:8152": "{history}"},
        ("# Backtest of ", r"\| 30 s \|.*\n\| 60 s \|.*\n\| 120 s \|.*\n\| 180 s \|"),
    ),
    Run("docs/tuning.md", "stallwatch-exporter backtest", HISTORY, ("# Backtest of ",)),
    Run(
        "docs/tuning.md",
        "stallwatch-exporter record",
        {"http://127.0.0.1:8000": "{busy}", "--every 5 --for 3600": "--every 0.5 --for 3"},
    ),
    Run("docs/tuning.md", "stallwatch-exporter replay worst", says=('"verdict": ?"busy"',)),
    Run("docs/tuning.md", "stallwatch-exporter replay --suspect-after 5", says=('"verdict": ?"(busy|stalled)"',)),
    Run(
        "docs/check.md",
        "stallwatch-exporter check http://127.0.0.1:18432",
        {"http://127.0.0.1:18432": "{busy}"},
        early=True,
    ),
    Run(
        "docs/check.md",
        "stallwatch-exporter check http://127.0.0.1:18431",
        {"http://127.0.0.1:18431": "{idle}"},
        early=True,
    ),
    Run(
        "docs/check.md",
        "stallwatch-exporter check http://127.0.0.1:18439",
        {"http://127.0.0.1:18439": "{refused} --down-after 5"},  # a minute by default
        early=True,
    ),
    Run("docs/check.md", "stallwatch-exporter check URL", {"URL": "{frozen}"}, early=True),
    Run("docs/web-config.md", "stallwatch-exporter", EXPORTER | TLS, until="event=started"),
    Run("docs/web-config.md", "stallwatch-remediator", REMEDIATOR | TLS, until="event=started"),
    Run("docs/scale.md", "stallwatch-exporter --config.file exporter.yml --shard", EXPORTER, until="event=started"),
    Run(
        "docs/journal.md",
        "stallwatch-remediator export",
        CHAIN | {"gb10-a": "demo", "> events.jsonl": ""},
        ('"kind": ?"decision"', '"kind": ?"attempt"'),
    ),
    Run(
        "docs/postmortem.md",
        "stallwatch-remediator timeline",
        CHAIN | {"http://127.0.0.1:9090": "{prometheus}", "> incident.md": "&& grep '</svg>' incident.svg"},
        ("driver called", "recovered", "</svg>"),
    ),
    Run("docs/remediator.md", "curl", CURL, (r"^\{",)),
]


def every_command() -> list[Command]:
    """Those with a row, and those that no mark excuses; what waits for the story of the chain comes late."""
    shell = [(block, command) for block in BLOCKS if block.kind in SHELL for command in commands(block)]
    found = [command for block, command in shell if block.mark is None or how(command)]

    def story(run: Run) -> bool:
        return "{chain}" in str(run.put) or run.begins == "make run  "

    return sorted(found, key=lambda command: [(run.early, story(run)) for run in how(command)])


def how(command: Command) -> list[Run]:
    """The one row for a command; when there is not exactly one, the documents or the table are wrong."""
    fits = [run for run in RUNS if run.page == command.page and command.text.startswith(run.begins)]
    longest = max((len(run.begins) for run in fits), default=0)
    return [run for run in fits if len(run.begins) == longest]


COMMANDS = every_command()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """What takes its time has begun."""
    with contextlib.ExitStack() as stack:
        made = World(tmp_path_factory.mktemp("docs"), stack)
        made.once("story", f"exec {made['make']} run")
        for command in COMMANDS:
            for run in how(command):
                if run.early:
                    made.once(command.where, text_of(made, command, run))
        yield made


def text_of(world: World, command: Command, run: Run) -> str:
    """The command with this machine's addresses; `gb10-a` of a call is the chain's backend."""
    text = world.fill(command.text, run.put)
    return text.replace("/gb10-a/", "/demo/")


def test_every_command_is_run_or_says_why_not() -> None:
    """One row for each command, and no row without a command."""
    assert [f"{command.where}: {command.text}" for command in COMMANDS if len(how(command)) != 1] == []
    used = [run for command in COMMANDS for run in how(command)]
    assert [(run.page, run.begins) for run in RUNS if run not in used] == []


def test_no_command_hides_in_another_block() -> None:
    """Commands stand in sh or console blocks, so that they are found."""
    others = [block for block in BLOCKS if block.kind in ("", "text") and not excused(block)]
    assert [block.where for block in others if looks_like_commands(block)] == []


def excused(block: Block) -> bool:
    """Whether its mark says why it is not run, or what runs it."""
    return bool(block.mark and re.match(r"not run here: \S.{8,}|run by: \S+", block.mark))


def test_marks_are_reasons_or_tests_that_are_there() -> None:
    """A mark with a typing error would excuse a command for ever."""
    wrong = []
    for block in BLOCKS:
        if block.kind not in SHELL or block.mark is None:
            continue
        if not excused(block):
            wrong.append(f"{block.where}: {block.mark}")
        elif block.mark.startswith("run by: "):
            for target in block.mark.removeprefix("run by: ").split(", "):
                file, _, test = target.strip().partition("::")
                if not (ROOT / file).is_file() or (test and f"def {test}(" not in (ROOT / file).read_text("utf-8")):
                    wrong.append(f"{block.where}: {target}")
    assert wrong == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.where} {command.text[:50]}")
def test_command(world: World, command: Command) -> None:
    """It does what the page says, on real programs."""
    (run,) = how(command)
    if run.begins == "make run  ":
        world.story()  # it goes on as the chain of the others; Ctrl-C is shown by the test below
        return
    if run.begins == "make run BACKEND=":
        return  # the test below
    text = text_of(world, command, run)
    running = world.once(command.where, f"exec {text}" if run.until else text)
    if run.until:
        running.until(run.until)
    code = running.end(run.ends if run.until else 0)
    output = running.output()
    if run.until:  # both programs begin and end in the same words
        assert [word for word in ("stopping", "stopped") if f"component=main event={word}" not in output] == [], output
    assert code == 0 or run.ends == signal.SIGINT, output
    assert [pattern for pattern in run.says if not re.search(pattern, output, re.MULTILINE)] == [], output
    if command.printed:
        assert re.fullmatch(loosely(command.printed), " ".join(output.split())), output


def test_the_chain_over_a_server_of_yours(world: World) -> None:
    """`make run BACKEND=` only advises, and Ctrl-C ends all of it."""
    running = world.start(f"exec {world['make']} run BACKEND={world['idle']}")
    running.until(r"mode: advise")
    running.until(r"The chain goes on")
    running.end(signal.SIGINT)
    assert "ended all that was started" in running.output()


def loosely(printed: str) -> str:
    """What a page shows as a pattern: other numbers are no difference, nor is how lines are broken."""
    return re.sub(
        r"\d{2,}|\d(?= (s|pages|running|waiting|short))",
        r"\\d+",
        re.escape(" ".join(printed.split())).replace("\\ ", " "),
    ).replace(" ", r"\s")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind in SHELL], ids=lambda block: block.where)
def test_shell_can_read_it(block: Block) -> None:
    """Also what is not run here."""
    for command in commands(block):
        said = subprocess.run(["sh", "-n", "-c", command.text], capture_output=True, text=True, check=False)
        assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind in ("yaml", "json")], ids=lambda block: block.where)
def test_yaml_can_be_read(block: Block) -> None:
    """And says something."""
    assert all(document for document in yaml.safe_load_all(block.text))


def test_promtool_reads_every_query(tmp_path: Path) -> None:
    """As recording rules, a group for each block."""
    found = [block for block in BLOCKS if block.kind == "promql"]
    groups = [
        {"name": block.where, "rules": [{"record": f"q{n}", "expr": query} for n, query in enumerate(queries(block))]}
        for block in found
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    said = run_tool("promtool", "check", "rules", "--lint=none", tmp_path / "rules.yml")
    assert said.returncode == 0, said.stdout
    assert found


def test_blocks_and_commands_are_found() -> None:
    """Indented fences, prompts, comments, and commands over several lines."""
    page = (
        "a\n\n<!-- not run here: needs x -->\n  ```sh\n  (a &&\n   b)\n  # no\n  c \\\n    d  # e\n  ```\n\n    $ x\n"
    )
    shell, indented = blocks("p", page)
    assert [(c.line, c.text) for c in commands(shell)] == [(5, "(a &&\n b)"), (8, "c \\\n  d  # e")]
    assert (shell.mark, indented.kind, indented.line) == ("not run here: needs x", "", 12)
    assert looks_like_commands(indented)
    (one,) = commands(Block("p", 1, "console", ("$ a; echo $?", "b", "0"), None))
    assert (one.text, one.printed) == ("a; echo $?", "b\n0\n")
