"""Target lists in Prometheus's formats: what is taken, and what is a typed failure, as promtool says it too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import AskSettings, LimitSettings
from exporter.discovered import Unusable, settings_of
from exporter.targets import MAX_BYTES, MAX_VALUE, MOST_TARGETS, TargetsError, parse_json, parse_yaml
from tests.prometheus import promtool_refuses

A = {"__address__": "a:1"}

YAML_CASES: list[tuple[str, str, list[dict[str, str]] | str]] = [
    ("a list", "- targets: [a:1, b:2]\n  labels: {g: h}", [{**A, "g": "h"}, {"__address__": "b:2", "g": "h"}]),
    ("JSON is YAML too", '[{"targets": ["a:1"]}]', [A]),
    ("nothing", "", []),
    ("only a comment", "# nobody yet\n", []),
    ("an empty list", "[]", []),
    ("a group without targets", "- labels: {a: b}", []),
    ("numbers are taken as written", "- {targets: ['a:1'], labels: {n: 007, t: yes}}", [{"n": "007", "t": "yes", **A}]),
    ("no group", "- ", "is no mapping"),
    ("a mapping", "targets: [a]", "is no list of target groups"),
    ("text", "hello", "is no list of target groups"),
    ("a misspelt key", "- {target: [a]}", "is neither targets nor labels"),
    ("targets that are no list", "- {targets: {a: b}}", "is no list"),
    ("a target that is no text", "- {targets: [[a]]}", "is not text"),
    ("labels that are no mapping", "- {targets: [a], labels: [b]}", "is no mapping"),
    ("a value that is no text", "- {targets: [a], labels: {b: {c: d}}}", "is not text"),
    ("a name with a dash", "- {targets: [a], labels: {b-c: d}}", "is no name of a label"),
    ("a name with a new line", '- {targets: [a], labels: {"b\\nc": d}}', "is no name of a label"),
    ("a key that stands twice", "- {targets: [a], targets: [b]}", "stands twice"),
    ("no YAML", "- {targets: [a", "is not YAML"),
]  # fmt: skip
OURS_ALONE: list[tuple[str, bytes, str]] = [
    ("an alias", b"- &g {targets: [a]}\n- *g", "aliases are not allowed"),
    ("a deep nest", b"[" * 50, "is nested deeper"),
    ("a very deep nest", b"[" * 20000, "nest"),
    ("a bomb of aliases", b"a: &a [x,x]\nb: &b [*a,*a]\n", "aliases are not allowed"),
    ("bytes", b"\xff\xfe\x00", "is not UTF-8"),
    ("ten megabytes", b"- {targets: [" + b"a:1, " * 2_000_000 + b"]}", f"is larger than {MAX_BYTES} bytes"),
    ("a long value", b"- {targets: [" + b"a" * (MAX_VALUE + 1) + b"]}", "is longer than"),
    ("a flood", b"- {targets: [" + b"a," * (MOST_TARGETS + 1) + b"]}", "holds more than"),
    ("two documents", b"[]\n---\n[]", "more than one document"),
    ("a key that is a list", b"- {[a]: b}", "a key is not text"),
]


@pytest.mark.parametrize(("text", "expected"), [c[1:] for c in YAML_CASES], ids=[c[0] for c in YAML_CASES])
def test_yaml_lists(text: str, expected: list[dict[str, str]] | str) -> None:
    """One row: a file, and its targets or why it is none."""
    if isinstance(expected, str):
        with pytest.raises(TargetsError, match=expected):
            parse_yaml(text.encode())
    else:
        assert parse_yaml(text.encode()) == expected


def test_a_real_promtool_refuses_the_same_lists(tmp_path: Path) -> None:
    """Each file of the table as the list of a job of its own."""
    paths = []
    for number, (_, text, _) in enumerate(YAML_CASES):
        (tmp_path / f"list-{number}.yml").write_text(text)
        job = {"job_name": "x", "file_sd_configs": [{"files": [f"list-{number}.yml"]}]}
        paths.append(tmp_path / f"prometheus-{number}.yml")
        paths[-1].write_text(yaml.safe_dump({"scrape_configs": [job]}))
    assert promtool_refuses(paths) == [isinstance(expected, str) for _, _, expected in YAML_CASES]


@pytest.mark.parametrize(("data", "words"), [c[1:] for c in OURS_ALONE], ids=[c[0] for c in OURS_ALONE])
def test_hostile_lists(data: bytes, words: str) -> None:
    """Where this program stops and Prometheus would go on: one line, and soon."""
    with pytest.raises(TargetsError, match=words) as caught:
        parse_yaml(data)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"targets": ["a:1"], "labels": {"x": "y"}}]', [{"x": "y", **A}]),
        ("[]", []),
        ("null", []),
        ('[{"targets": null}]', []),
        ("", "is not JSON"),
        ('[{"targets": ["a:1"], "labels": {"x": 1}}]', "is not text"),
        ('[{"targets": ["a:1"], "more": 1}]', "is neither"),
        ('[{"targets": ["\\ud800"]}]', "is not Unicode"),
        ("[" * 100_000, "is not JSON"),
        ("NaN", "is no list"),
        ("[null]", "is no mapping"),
    ],
)
def test_json_lists(text: str, expected: list[dict[str, str]] | str) -> None:
    """The same as JSON, in which a number is no text."""
    if isinstance(expected, str):
        with pytest.raises(TargetsError, match=expected):
            parse_json(text.encode())
    else:
        assert parse_json(text.encode()) == expected


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["targets", "labels", "a", "é", "\n"]), inner, max_size=3)
    ),
    max_leaves=12,
)


LISTS = st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps([value]).encode())


@settings(max_examples=150, deadline=None)
@given(LISTS, st.sampled_from([parse_json, parse_yaml]))
def test_noise_gives_typed_failures_only(data: bytes, parse: Callable[[bytes], list[dict[str, str]]]) -> None:
    """Whatever a list holds, it is targets or `TargetsError`; whatever targets hold, a backend or `Unusable`."""
    said: list[Exception] = []
    found: list[dict[str, str]] = []
    try:
        found = parse(data)
    except TargetsError as error:
        said.append(error)
    for labels in found:
        try:
            settings_of(labels, AskSettings(), LimitSettings())
        except Unusable as unusable:
            said.append(unusable)
    assert not any("\n" in str(error) for error in said)


LABELS: list[tuple[str, dict[str, str], dict[str, object] | str]] = [
    ("the address alone", {}, {"name": "10.0.0.5_8000", "url": "http://10.0.0.5:8000", "runtime": "auto"}),
    ("a name", {"backend": "gb10-a"}, {"name": "gb10-a"}),
    ("group and kind", {"group": "llama", "runtime": "sglang"}, {"group": "llama", "runtime": "sglang"}),
    ("TLS and a prefix", {"__scheme__": "https", "__metrics_path__": "/v/metrics"}, {"url": "https://10.0.0.5:8000/v"}),
    ("proxy and maintenance", {"__proxy__": "true", "__maintenance__": "true"}, {"proxy": True, "maintenance": True}),
    ("other labels mean nothing", {"env": "prod", "__meta_x": "y", "__param_x": "z"}, {"name": "10.0.0.5_8000"}),
    ("a bad name is no name", {"backend": "a b"}, "backend: may only hold letters"),
    ("a name with a new line", {"backend": "a\n"}, "backend: may only hold letters"),
    ("a bad group", {"group": "a/b"}, "group: may only hold letters"),
    ("no address", {"__address__": ""}, "__address__ is empty"),
    ("an address with credentials", {"__address__": "u:p@h"}, "__address__: must hold no credentials"),
    ("an address with a path", {"__address__": "h:1/x?y"}, "__address__: must hold neither a query"),
    ("a scheme that is none", {"__scheme__": "file"}, "__address__: must be an http"),
    ("metrics elsewhere", {"__metrics_path__": "/stats"}, "must begin with / and end with /metrics"),
    ("no truth", {"__proxy__": "yes"}, "__proxy__: must be true or false"),
    ("a limit that is none", {"__limit_stuck_after__": "5"}, "names no limit"),
    ("a limit without its end", {"__limit_stuck_after_seconds": "5"}, "names no limit"),
    ("a limit that is no number", {"__limit_stuck_after_seconds__": "nan"}, "must be a number of seconds"),
    ("a limit of zero", {"__limit_stuck_after_seconds__": "0"}, "must be a number of seconds"),
    ("asking that is none", {"__ask_when__": "always"}, "__ask_when__: must be"),
    ("idle for how long", {"__sleep_idle_seconds__": "x"}, "must be a number of seconds"),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "expected"), [c[1:] for c in LABELS], ids=[c[0] for c in LABELS])
def test_labels_become_settings(labels: dict[str, str], expected: dict[str, object] | str) -> None:
    """One row: the labels of a target at 10.0.0.5:8000, and what differs in the backend, or why there is none."""
    given = {"__address__": "10.0.0.5:8000", **labels}
    if isinstance(expected, str):
        with pytest.raises(Unusable, match=expected):
            settings_of(given, AskSettings(), LimitSettings())
    else:
        made = settings_of(given, AskSettings(), LimitSettings())
        assert {key: getattr(made, key) for key in expected} == expected


def test_labels_go_before_what_the_list_says() -> None:
    """`ask` and `limits` of the list are the defaults of all its backends; no label names a file."""
    ask = AskSettings(api_key_file="/etc/key", model="m")
    labels = {
        **A,
        "__ask_when__": "never",
        "__limit_stuck_after_seconds__": "200",
        "__ask_api_key_file__": "/etc/shadow",
    }
    made = settings_of(labels, ask, LimitSettings(stuck_after_seconds=100, suspect_after_seconds=50))
    assert (made.ask.when, made.ask.model, made.ask.api_key_file) == ("never", "m", "/etc/key")
    assert (made.limits.stuck_after_seconds, made.limits.suspect_after_seconds) == (200, 50)
