"""Strict settings: a valid object, or one line that names the file and the place, whatever the file holds."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stallwatch.settings import Name, Seconds, SettingsError, Strict, Url, check_url, load_yaml, read_secret


class Part(Strict):
    """A part of the file."""

    name: Name
    url: Url = "http://a"
    token_file: str | None = None


class Whole(Strict):
    """A file with one of everything."""

    wait_seconds: Seconds = 5.0
    parts: list[Part] = []
    extra: Part | None = None


def line(tmp_path: Path, text: str | bytes) -> str:
    """The one error line of a file, without the folder."""
    path = tmp_path / "file.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as caught:
        load_yaml(path, Whole)
    said = str(caught.value)
    assert said.isprintable(), "more than one line, or what a terminal would act on"
    return said.removeprefix(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "file.yml: is empty"),
        ("parts: [{name: ..}]", "file.yml: parts[0].name: must be a name: . and .. are steps in a path"),
        ("# nothing\n", "file.yml: is empty"),
        ("[]", "file.yml: must be a mapping of keys at the top"),
        ("hello", "file.yml: must be a mapping of keys at the top"),
        (b"\xff\xfe\x00", "file.yml: is not UTF-8 text"),
        ("a: \x07", "file.yml:1:4: a character that YAML does not allow"),
        ("wait_seconds: 5\nparts: \x00", "file.yml:2:8: a character that YAML does not allow"),
        ("parts:\n\t- x", "file.yml:2:1: found character '\\t' that cannot start any token"),
        (
            "wait_seconds: 5\n---\nwait_seconds: 6",
            "file.yml:2:1: expected a single document in the stream, but found another document",
        ),
        ("wait_seconds: 5\nwait_seconds: 6", "file.yml:2:1: the key 'wait_seconds' stands twice"),
        ("a: &x 1\nb: *x", "file.yml:2:4: aliases are not allowed"),
        ("[" * 100_000, "file.yml:1:41: is nested deeper than 40 levels"),
        ("".join(" " * n + "a:\n" for n in range(500)), "file.yml:40:40: is nested deeper than 40 levels"),
        ("on: 1", "file.yml:1:1: the key 'on' must be text; put it in quotes"),
        ("1: 1", "file.yml:1:1: the key '1' must be text; put it in quotes"),
        ("? [a]\n: 1", "file.yml:1:3: a key must be a word"),
        ("x: !!python/name:os.system", "file.yml:1:4: could not determine a constructor for the tag"),
        ("wait_second: 5", "file.yml: wait_second: unknown key; did you mean wait_seconds?"),
        ("colour: 5", "file.yml: colour: unknown key"),
        ("parts: [{name: a, wait_seconds: 1}]", "file.yml: parts[0].wait_seconds: unknown key"),
        ("extra: {name: a, urll: 'http://a'}", "file.yml: extra.urll: unknown key; did you mean url?"),
        ('"a\\n\\e[31m": 1', "file.yml: a\\n\\x1b[31m: unknown key"),
        ("parts: [{}]", "file.yml: parts[0].name: is missing"),
        ("parts: [{name: 1, url: 2}]", "file.yml: parts[0].name: must be text (and 1 more)"),
        ("parts: [{name: 1, url: 2}, {}]", "file.yml: parts[0].name: must be text (and 2 more)"),
        ("parts: 5", "file.yml: parts: must be a list"),
        ("parts: [5]", "file.yml: parts[0]: must be a mapping of keys"),
        ("wait_seconds: '5'", "file.yml: wait_seconds: must be a number"),
        ("wait_seconds: true", "file.yml: wait_seconds: must be a number"),
        ("wait_seconds: 2024-01-01", "file.yml: wait_seconds: must be a number"),
        ("wait_seconds: 0", "file.yml: wait_seconds: must be above 0"),
        ("wait_seconds: -1", "file.yml: wait_seconds: must be above 0"),
        ("wait_seconds: .nan", "file.yml: wait_seconds: must be a finite number"),
        ("wait_seconds: .inf", "file.yml: wait_seconds: must be a finite number"),
        ("extra: {name: 'a b'}", "file.yml: extra.name: may only hold letters, digits, dot, dash and underscore"),
        ('extra: {name: "a\\n"}', "file.yml: extra.name: may only hold letters, digits, dot, dash and underscore"),
        ("extra: {name: ''}", "file.yml: extra.name: may only hold letters, digits, dot, dash and underscore"),
        ("extra: {name: a, url: a}", "file.yml: extra.url: must be an http:// or https:// address"),
    ],
)
def test_one_line_that_names_the_place(tmp_path: Path, text: str | bytes, expected: str) -> None:
    """Each kind of mistake has its line; a place in the text comes with line and column."""
    assert line(tmp_path, text).startswith(expected)


@pytest.mark.parametrize("tag", ["int", "float", "bool", "timestamp", "null", "binary", "map", "seq", "set", "omap"])
def test_a_value_that_is_not_what_its_tag_says_is_not_shown(tmp_path: Path, tag: str) -> None:
    """It may be a secret, and none of these may be a traceback either."""
    assert "hunter2" not in line(tmp_path, f"token: !!{tag} hunter2é\n")


@pytest.mark.parametrize(
    "text",
    [
        "extra: {name: a, token_file: [hunter2]}",
        "extra: {name: 'hunter2 !'}",
        "extra: {name: a, url: 'http://user:hunter2@host'}",
        "wait_seconds: hunter2",
        'token: "hunter2',
    ],
)
def test_no_value_is_shown(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with it, a value stays in its file."""
    assert "hunter2" not in line(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a folder, too large, with a name that no file can have."""
    for path, expected in [
        (tmp_path / "none.yml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (Path("a\0b"), "is no file name"),
        (tmp_path / "two\nlines.yml", "lines.yml: cannot be read"),
    ]:
        with pytest.raises(SettingsError, match=expected) as caught:
            load_yaml(path, Whole)
        assert str(caught.value).isprintable()
    assert line(tmp_path, "# " + "x" * (4 * 1024 * 1024)) == "file.yml: larger than 4194304 bytes"


def test_a_very_long_line_is_cut(tmp_path: Path) -> None:
    """A key of a megabyte does not fill the log."""
    assert len(line(tmp_path, "? " + "k" * 1_000_000 + "\n: 1")) < 1100


def test_a_valid_file(tmp_path: Path) -> None:
    """Defaults, numbers without a point, a mark of the byte order as some editors write it; and it does not change."""
    path = tmp_path / "file.yml"
    path.write_text("\ufeffwait_seconds: 7\nparts: [{name: a-1_b.c, url: 'https://[::1]:8000/v1/'}]\n")
    whole = load_yaml(path, Whole)
    assert (whole.wait_seconds, whole.extra) == (7.0, None)
    assert (whole.parts[0].name, whole.parts[0].url) == ("a-1_b.c", "https://[::1]:8000/v1")
    with pytest.raises(ValidationError):
        whole.wait_seconds = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://vllm_a:8000",
        "http://10.0.0.5:8000/base",
        "http://[fe80::1]:1",
        "HTTP://A.example.",
        "http://bücher.example",
    ],
)
def test_addresses(url: str) -> None:
    """What names a server."""
    assert check_url(url) == url
    assert check_url(url + "/") == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        *((url, "http:// or https://") for url in ("", "a", "a:80", "//a", "ftp://a", "file:///etc/passwd", "http://")),
        *((url, "http:// or https://") for url in ("http:///a", "http://:80", "http://a:", "http://a:0", "http://a:x")),
        *(
            (url, "http:// or https://")
            for url in ("http://a:70000", "http://[::1", "http://a b", "http://a\n", "http://a\\b")
        ),
        *(
            (url, "http:// or https://")
            for url in ("http://..a", "http://" + "a" * 64, "http://a|b", "http://a%41", "\x00")
        ),
        *((url, "credentials") for url in ("http://u@a", "http://u:p@a", "http://@a", "http://u:p@")),
        *((url, "query") for url in ("http://a?x=1", "http://a#x", "http://a/?", "http://a/#")),
    ],
)
def test_what_is_no_address(url: str, expected: str) -> None:
    """Everything that would fail at the first request, or leak, is refused when the file is read."""
    with pytest.raises(SettingsError, match=expected):
        check_url(url)


def test_secrets(tmp_path: Path) -> None:
    """White space around it is dropped; an empty one, or one that no header can carry, is an error without it."""
    path = tmp_path / "key"
    path.write_bytes(b"\xef\xbb\xbf  hunter2\r\n")
    assert read_secret(path) == "hunter2"
    for content, expected in [
        (b"\n", "holds no secret"),
        (b"hunter2\nhunter2", "no HTTP header"),
        ("hunter2é".encode(), "no HTTP header"),
        (b"\xff", "not UTF-8"),
    ]:
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=expected) as caught:
            read_secret(str(path))
        assert "hunter2" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_secret(tmp_path / "none")


@given(st.text(max_size=60) | st.from_regex(r"[a-z]+: !!(int|float|bool|timestamp|set|map|seq|omap|pairs) .{0,9}"))
@settings(max_examples=300, deadline=None)
def test_any_text_is_settings_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Nothing but a SettingsError comes out of a file."""
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(SettingsError):
        load_yaml(path, Whole)
