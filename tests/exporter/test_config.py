"""Configuration: a tiny bad file per rule with its exact error line, defaults, and noise that must not crash."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import load
from exporter.model import AskWhen
from exporter.runtimes import builtin
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


def test_runtimes_can_be_added(tmp_path: Path) -> None:
    """A file of one's own adds a kind of server, for backends that name it and for those told from the page."""
    (tmp_path / "mine.yml").write_text(
        "name: mine\nsteps: [{series: my_steps_total}]\nlimits: {stuck_after_seconds: 77}\n"
    )
    path = tmp_path / "exporter.yml"
    path.write_text(
        "runtime_files: [mine.yml]\nbackends: [{name: a, url: 'http://a', runtime: mine}, {name: b, url: 'http://b'}]\n"
    )
    named, told = load(path)
    assert named.limits.stuck_after_seconds == 77
    assert told.undetected
    assert "mine" in {runtime.name for runtime in told.candidates}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name: mine\nstep: []\n", "mine.yml: step: unknown key; did you mean steps?"),
        ("name: mine\nlimits: {stuck: 5}\n", "mine.yml: limits: stuck is no limit; they are poll_interval_seconds"),
        ("name: mine\nsteps: [{series: 'a b'}]\n", "mine.yml: steps[0].series"),
        ("name: mine\nask: {path: /x}\n", "mine.yml: ask.path: must be one of"),
    ],
)
def test_bad_runtime_files_are_one_line(content: str, words: str, tmp_path: Path) -> None:
    """A mistake in a runtime's file names that file and the place in it."""
    (tmp_path / "mine.yml").write_text(content)
    path = tmp_path / "exporter.yml"
    path.write_text("runtime_files: [mine.yml]\nbackends: [{name: a, url: 'http://a'}]\n")
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_builtin_runtime_says_how_it_is_known() -> None:
    """Whoever reads a verdict can see whether its runtime was run here or only read about."""
    assert set(builtin()) == {"vllm", "sglang", "llamacpp", "tgi", "trtllm", "none"}
    assert all(runtime.seen for runtime in builtin().values())


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
