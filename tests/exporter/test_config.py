"""Configuration: a tiny bad file per rule with its exact error line, defaults, and noise that must not crash."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import load
from exporter.model import AskWhen
from stallwatch.settings import SettingsError

HERE = Path(__file__).parent / "bad_config"
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("path", sorted(HERE.glob("*.yml")), ids=lambda path: path.stem)
def test_bad_file_has_its_exact_line(path: Path) -> None:
    """Each file breaks one rule; the error is one line that names the file and the path in it."""
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert str(caught.value) == f"{HERE}/{path.with_suffix('.error').read_text().strip()}"
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("what", ["missing", "folder", "binary", "deep", "huge"])
def test_files_that_are_no_configuration(what: str, tmp_path: Path) -> None:
    """A file that is not there, a folder, bytes, a deep nest, 5 MB: one line each."""
    path = tmp_path / "exporter.yml"
    match what:
        case "folder":
            path.mkdir()
        case "binary":
            path.write_bytes(b"\xff\xfe\x00\x01" * 10)
        case "deep":
            path.write_text("[" * 5000)
        case "huge":
            path.write_text("# " + "x" * 5_000_000)
    with pytest.raises(SettingsError, match=r"^[^\n]+$"):
        load(path)


def test_example_configuration_loads() -> None:
    """The example in config/ is a configuration."""
    backends = load(ROOT / "config" / "exporter.yml")
    assert [backend.name for backend in backends]


def test_limits_come_from_the_nearest_level(tmp_path: Path) -> None:
    """The runtime's default, then the file's top, then a flag, then the backend's own."""
    path = tmp_path / "exporter.yml"
    path.write_text(
        "limits: {ask_timeout_seconds: 20, suspect_after_seconds: 50}\n"
        "backends:\n"
        "  - {name: a, url: 'http://a:8000/'}\n"
        "  - {name: b, url: 'http://b:8000', ask: {when: never}, limits: {stuck_after_seconds: 90}}\n"
    )
    a, b = load(path, {"suspect_after_seconds": 40})
    assert (a.limits.stuck_after_seconds, a.limits.ask_timeout_seconds, a.limits.suspect_after_seconds) == (180, 20, 40)
    assert (b.limits.stuck_after_seconds, b.limits.ask_when) == (90, AskWhen.NEVER)
    assert a.url == "http://a:8000"
    assert a.group == "a"


def test_secrets_are_read_from_files_and_not_shown(tmp_path: Path) -> None:
    """The key is there for the request, and in no representation."""
    (tmp_path / "key").write_text("hunter2\n")
    path = tmp_path / "exporter.yml"
    path.write_text(f"backends: [{{name: a, url: 'http://a:8000', ask: {{api_key_file: '{tmp_path}/key'}}}}]")
    (backend,) = load(path)
    assert backend.api_key == "hunter2"
    assert "hunter2" not in repr(backend)


@given(st.text(max_size=200) | st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_configuration_or_a_settings_error(
    tmp_path_factory: pytest.TempPathFactory, noise: str | bytes
) -> None:
    """Whatever the file holds, only a SettingsError comes out."""
    path = tmp_path_factory.getbasetemp() / "noise.yml"
    path.write_bytes(noise if isinstance(noise, bytes) else noise.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(SettingsError):
        load(path)
