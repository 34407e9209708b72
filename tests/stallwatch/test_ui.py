"""What both programs' pages share: times and numbers in words, colours with contrast, files that may be kept."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from flask import Flask

from stallwatch import ui
from stallwatch.ui.words import ago, duration, figure, iso, utc

CSS = (Path(ui.__file__).parent / "stallwatch.css").read_text(encoding="utf-8")
JS = (Path(ui.__file__).parent / "stallwatch.js").read_text(encoding="utf-8")
TONES = ("bad", "warn", "note", "good")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (0, "0 s"),
        (-3, "0 s"),
        (0.42, "0.4 s"),
        (119.9, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7260, "2 h 1 min"),
        (7200, "2 h"),
        (36_060, "10 h"),
        (172_800, "2 d"),
        (180_000, "2 d 2 h"),
        (1e300, "longer than a century"),
        (float("nan"), "longer than a century"),
    ],
)
def test_durations_in_words(seconds: float | None, said: str) -> None:
    """No finer than it needs to be; what a server makes up is no error."""
    assert duration(seconds) == said


def test_instants_in_words() -> None:
    """A time that no calendar has is unknown, and a clock that is a little ahead is now."""
    assert (utc(1_796_000_000.9), iso(1_796_000_000.9)) == ("2026-11-30 00:53:20", "2026-11-30T00:53:20Z")
    for wrong in (None, float("nan"), float("inf"), 1e300, -1e300):
        assert (utc(wrong), iso(wrong)) == ("unknown", "")
    assert (ago(None), ago(-2), ago(0.9), ago(180)) == ("", "now", "now", "3 min ago")


def test_figures() -> None:
    """Counters keep every digit, shares a few; what is no number is said as it is."""
    values = (None, 0, 1_314_500, 0.6199, 12.0, 1e18, float("nan"))
    assert [figure(value, 2) for value in values] == ["", "0", "1,314,500", "0.62", "12", "1e+18", "nan"]
    assert figure(100.0, 0) == "100"


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(scheme: str) -> None:
    """WCAG AA: 4.5 for text on whatever it stands on, 3 for the fill of a bar and the frame of a field."""
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
    colours = _colours(light if scheme == "light" else dark)
    assert set(colours) == set(_colours(light))
    texts = [*product(("text", "minor", "link", *TONES), ("ground", "raised"))]
    texts += [(tone, f"{tone}-ground") for tone in TONES]
    shapes = [("fill", "ground"), ("minor", "raised")]
    assert [pair for pair in texts if _contrast(colours[pair[0]], colours[pair[1]]) < 4.5] == []
    assert [pair for pair in shapes if _contrast(colours[pair[0]], colours[pair[1]]) < 3] == []


def test_colours_stand_in_variables_only() -> None:
    """So that the test above sees every one of them."""
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsl", rules) == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    """Neither file names another address."""
    assert re.findall(r"https?://|url\(|@import", CSS + JS) == []


def test_files_may_be_kept_under_their_version_only() -> None:
    """The address that a page names holds for ever; the bare one is asked for again, and answered briefly."""
    app = Flask("pages", static_folder=None)
    ui.add_to(app, "exporter.pages")
    client = app.test_client()
    bare = client.get("/static/stallwatch.css")
    tag = bare.headers["ETag"].strip('"')
    assert (bare.headers["Cache-Control"], bare.content_type) == ("no-cache", "text/css; charset=utf-8")
    assert client.get(f"/static/stallwatch.css?v={tag}").headers["Cache-Control"] == ui.FOR_EVER
    assert client.get("/static/stallwatch.css?v=older").headers["Cache-Control"] == "no-cache"
    assert client.get("/static/stallwatch.css", headers={"If-None-Match": f'"{tag}"'}).status_code == 304
    assert client.get("/static/stallwatch.js").content_type == "text/javascript; charset=utf-8"
    for name in ("x.css", "../__init__.py", "%2e%2e/__init__.py", "templates/base.html"):
        assert client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize(("path", "root"), [("/", "./"), ("/x", "./"), ("/x/y", "../"), ("/x/y/", "../../")])
def test_the_way_to_the_root(path: str, root: str) -> None:
    """Links are relative, so that a proxy may put the program under any path."""
    assert ui.root_of(path) == root
