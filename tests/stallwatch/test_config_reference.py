"""docs/configuration.md against the settings' types, and against pydantic's own account of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field

from stallwatch.settings import Name, Seconds, Strict, Url
from tests.tools import ROOT
from tools import config_reference

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
"""Each section of the committed page by its heading."""


def schemas() -> dict[str, Mapping[str, Any]]:
    """Every class with keys by the heading that its section must have, as its JSON schema has it."""
    found = {}
    for program, top in config_reference.TOPS.items():
        whole = top.model_json_schema()
        found[f"{program}: the whole file"] = whole
        for name, schema in whole["$defs"].items():
            if "properties" in schema:
                found[f"{program}: {name.removesuffix('Settings').lower()}"] = schema
    return found


def rows(section: str) -> dict[str, list[str]]:
    """The cells of a section's table, without the key's own, by key."""
    lines = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in lines}


def test_the_committed_page_is_what_would_be_written() -> None:
    """By the command that CI can run."""
    script = ROOT / "tools" / "config_reference.py"
    found = subprocess.run(
        [sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_every_class_has_one_section() -> None:
    """No more and no fewer, and no two under one heading."""
    assert set(SECTIONS) == set(schemas())
    assert PAGE.count("\n## ") == len(SECTIONS)


@pytest.mark.parametrize("heading", sorted(schemas()))
def test_every_key_is_named(heading: str) -> None:
    """In its class's table, and marked as required where it is."""
    table, schema = rows(SECTIONS[heading]), schemas()[heading]
    assert list(table) == list(schema["properties"])
    assert {key for key, cells in table.items() if cells[1] == "**required**"} == set(schema.get("required", ()))
    assert all(cells[0] for cells in table.values())


def test_every_link_leads_to_a_section() -> None:
    """As GitHub names headings."""
    anchors = {heading.lower().replace(":", "").replace(" ", "-") for heading in SECTIONS}
    linked = set(re.findall(r"\]\(#([^)]*)\)", PAGE))
    assert linked == anchors - {"exporter-the-whole-file", "remediator-the-whole-file"}


def test_a_change_is_noticed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing page and an old one are differences; writing ends them."""
    page = tmp_path / "docs" / "configuration.md"
    page.parent.mkdir()
    monkeypatch.setattr(config_reference, "ROOT", tmp_path)
    monkeypatch.setattr(config_reference, "FILE", page)
    for old in (None, PAGE + "more\n"):
        if old is not None:
            page.write_text(old, encoding="utf-8")
        assert config_reference.main(["--check"]) == 1
        assert capsys.readouterr().err == (
            "docs/configuration.md is not in step with the settings: run tools/config_reference.py\n"
        )
    assert config_reference.main([]) == 0
    assert config_reference.main(["--check"]) == 0
    assert page.read_text(encoding="utf-8") == PAGE


class InnerSettings(Strict):
    """One."""

    size: int = 1


class SampleSettings(Strict):
    """A `<kept>` and a <tag>."""

    wait_seconds: Seconds = 2.5
    share: Annotated[float, Field(ge=0.5, le=1)] | None = None
    word: Annotated[str, Field(pattern="^(a|b)$", max_length=1)] = "a"
    """Either `a|b`, or <none>."""
    url: Url
    names: Annotated[list[Name], Field(min_length=2)]
    mode: Literal["x", "y"] = Field(default="x", description="How.")
    other: int = Field(alias="from", ge=1)
    inner: list[InnerSettings] | None = None
    one: InnerSettings = InnerSettings()
    changed: InnerSettings = InnerSettings(size=2)
    checked: Annotated[str, AfterValidator(str.strip)] = ""


NAME = "pattern `^[A-Za-z0-9_.-]{1,100}$`"
CASES = {
    "wait_seconds": ("number of seconds", "`2.5`", "above 0", ""),
    "share": ("number", "not set", "at least 0.5, at most 1", ""),
    "word": ("text", "`a`", r"at most 1 character, pattern `^(a\|b)$`", r"Either `a\|b`, or &lt;none>."),
    "url": ("http or https address", "**required**", "", ""),
    "names": ("list of: name", "**required**", f"at least 2 entries, each {NAME}", ""),
    "mode": ("one of `x`, `y`", "`x`", "", "How."),
    "from": ("whole number", "**required**", "at least 1", ""),
    "inner": ("list of: [inner](#exporter-inner)", "not set", "", ""),
    "one": ("[inner](#exporter-inner)", "its defaults", "", ""),
    "changed": ("[inner](#exporter-inner)", '`{"size": 2}`', "", ""),
    "checked": ("text", '`""`', "looked at more closely", ""),
}


@pytest.mark.parametrize("key", CASES)
def test_a_key_in_words(key: str) -> None:
    """Type, default, constraints and meaning."""
    made = config_reference.section("Exporter", SampleSettings, ["a", "b[]"])
    assert tuple(rows(made)[key]) == CASES[key]


def test_a_sections_text() -> None:
    """Its docstring, in which no tag is opened, and where it stands."""
    made = config_reference.section("Exporter", SampleSettings, ["a", "b[]"])
    assert made.startswith("\n## Exporter: sample\n\nA `<kept>` and a &lt;tag>.\n\nStands at `a`, `b[]`.\n\n| Key |")


def test_a_type_without_words_is_refused() -> None:
    """Rather than left out of the page."""
    with pytest.raises(TypeError, match=r"^key: no words for the type <class 'bytes'>$"):
        config_reference.words("Exporter", "key", bytes)
