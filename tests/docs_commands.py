"""The code blocks of the documents, and the commands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.tools import ROOT

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "grafana/*.md", "rules/**/*.md", "demo/**/*.md")
    for path in ROOT.glob(pattern)
)
SHELL = ("sh", "bash", "console")
_FENCE = re.compile(r"( *)```(\S*)$")
_MARK = re.compile(r" *<!-- (.*) -->$")
_PROGRAM = re.compile(
    r"\s*(\$ |([A-Z_]+=\S+ )*([^\s=]*/)?(amtool|bash|cd|curl|docker|git|htpasswd|install|kubectl|make|openssl|pip|"
    r"promtool|python3?|sh|stallwatch-\w+|sudo|systemctl)( |$))"
)


@dataclass(frozen=True)
class Block:
    """A code block; `line` is that of its first line, `mark` the HTML comment on the line before it, if any."""

    page: str
    line: int
    kind: str
    lines: tuple[str, ...]
    mark: str | None

    @property
    def where(self) -> str:
        """As an editor finds it."""
        return f"{self.page}:{self.line}"

    @property
    def text(self) -> str:
        """All lines."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True)
class Command:
    """One command of a block; in a `console` block with what it printed."""

    page: str
    line: int
    text: str
    printed: str = ""

    @property
    def where(self) -> str:
        """As an editor finds it."""
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> list[Block]:
    """Fenced blocks with their indentation taken off, and indented ones, whose kind is empty."""
    lines, found, at = text.splitlines(), [], 0
    while at < len(lines):
        mark = _MARK.match(lines[at - 1]) if at else None
        begin, end, indent, kind = at, at, 4, ""
        if fence := _FENCE.match(lines[at]):
            begin, indent, kind = at + 1, len(fence[1]), fence[2]
            end = next(n for n in range(begin, len(lines)) if lines[n].strip() == "```")
        elif lines[at].startswith("    ") and not (at and lines[at - 1].strip() and not mark):
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
        if end > begin:
            body = tuple(line[indent:] for line in lines[begin:end])
            found.append(Block(page, begin + 1, kind, body, mark[1] if mark else None))
        at = max(end, at) + 1
    return found


def all_blocks() -> list[Block]:
    """Of all documents."""
    return [
        block for path in PAGES for block in blocks(str(path.relative_to(ROOT)), Path(path).read_text(encoding="utf-8"))
    ]


def commands(block: Block) -> list[Command]:
    """The commands of a shell block: what goes on over several lines is one; comments are left out."""
    found: list[Command] = []
    text, begin = "", block.line
    console = block.kind == "console"
    for number, raw in enumerate(block.lines, block.line):
        line = raw
        if not text:
            if console and not raw.startswith("$ "):
                last = found.pop()
                found.append(Command(last.page, last.line, last.text, f"{last.printed}{raw}\n"))
                continue
            line = raw.removeprefix("$ ") if console else raw
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begin = number
        text += f"{line}\n"
        if not _goes_on(text):
            found.append(Command(block.page, begin, text.rstrip()))
            text = ""
    return [*found, Command(block.page, begin, text.rstrip())] if text else found


def looks_like_commands(block: Block) -> bool:
    """Whether a block that is said to be none begins a line with a program that one calls."""
    return any(_PROGRAM.match(line) for line in block.lines)


def queries(block: Block) -> list[str]:
    """The queries of a promql block: a line that is further indented goes on with the one before it."""
    found: list[str] = []
    for line in filter(str.strip, block.lines):
        if line[0] == " " and found:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _goes_on(text: str) -> bool:
    code = re.sub(r"'[^']*'|\"[^\"]*\"|(?<=\s)#.*", "", text).rstrip()
    return code.endswith(("\\", "&&", "||", "|")) or code.count("(") > code.count(")") or code.count("'") % 2 == 1
