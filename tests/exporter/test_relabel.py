"""Relabelling: a table of rules and labels, held against a real Prometheus that is given the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from exporter.relabel import RelabelSettings, Rule, relabel
from tests.prometheus import Prometheus, prometheus, promtool_refuses

ADDRESS = "127.0.0.1:1"
Labels = Mapping[str, str]
Case = tuple[str, list[dict[str, Any]], Labels, Labels | None]

CASES: list[Case] = [
    ("no rule leaves all", [], {"a": "x"}, {"a": "x"}),
    (
        "replace copies by default",
        [{"source_labels": ["a"], "target_label": "b"}],
        {"a": "x"},
        {"a": "x", "b": "x"},
    ),
    (
        "several sources are joined by ;",
        [{"source_labels": ["a", "b", "c"], "target_label": "d"}],
        {"a": "x", "c": "z"},
        {"a": "x", "c": "z", "d": "x;;z"},
    ),
    (
        "another separator",
        [{"source_labels": ["a", "c"], "separator": "", "target_label": "d"}],
        {"a": "x", "c": "z"},
        {"a": "x", "c": "z", "d": "xz"},
    ),
    (
        "the expression must match the whole value",
        [{"source_labels": ["a"], "regex": "x", "target_label": "b", "replacement": "y"}],
        {"a": "xx"},
        {"a": "xx"},
    ),
    (
        "either side of a bar is anchored",
        [{"source_labels": ["a"], "regex": "x|y", "target_label": "b", "replacement": "1"}],
        {"a": "xy"},
        {"a": "xy"},
    ),
    (
        "groups by number and by name",
        [
            {
                "source_labels": ["a"],
                "regex": "(.+)-(?P<zone>[0-9]+)",
                "target_label": "b",
                "replacement": "${zone}/$1/${2}/$$",
            }
        ],
        {"a": "vllm-7"},
        {"a": "vllm-7", "b": "7/vllm/7/$"},
    ),
    (
        "a name goes as far as it can: $1x is no group",
        [{"source_labels": ["a"], "target_label": "b", "replacement": "-$1x-${1}x-$9-$01-$"}],
        {"a": "v"},
        {"a": "v", "b": "--vx---$"},
    ),
    (
        "the name of the label may come from the value",
        [{"source_labels": ["a"], "regex": "(.+)=(.+)", "target_label": "l_${1}", "replacement": "$2"}],
        {"a": "k=v"},
        {"a": "k=v", "l_k": "v"},
    ),
    (
        "a name that is none is not set",
        [{"source_labels": ["a"], "target_label": "${1}", "replacement": "y"}],
        {"a": "k-v"},
        {"a": "k-v"},
    ),
    (
        "an empty replacement takes the label away",
        [{"target_label": "a", "replacement": ""}],
        {"a": "x", "b": "y"},
        {"b": "y"},
    ),
    (
        "what is absent is empty, and matches",
        [{"source_labels": ["nope"], "regex": "", "target_label": "b", "replacement": "absent"}],
        {"a": "x"},
        {"a": "x", "b": "absent"},
    ),
    (
        "rules follow each other",
        [
            {"source_labels": ["a"], "target_label": "b"},
            {"source_labels": ["b"], "regex": "(.).*", "target_label": "c"},
        ],
        {"a": "xyz"},
        {"a": "xyz", "b": "xyz", "c": "x"},
    ),
    ("keep keeps", [{"action": "keep", "source_labels": ["a"], "regex": "x.*"}], {"a": "xy"}, {"a": "xy"}),
    ("keep drops", [{"action": "keep", "source_labels": ["a"], "regex": "x"}], {"a": "xy"}, None),
    ("drop drops", [{"action": "drop", "source_labels": ["a"], "regex": "x."}], {"a": "xy"}, None),
    ("drop keeps", [{"action": "drop", "source_labels": ["a"], "regex": "x"}], {"a": "xy"}, {"a": "xy"}),
    (
        "keepequal keeps what is equal",
        [{"action": "keepequal", "source_labels": ["a"], "target_label": "b"}],
        {"a": "x", "b": "x"},
        {"a": "x", "b": "x"},
    ),
    (
        "keepequal drops what is not",
        [{"action": "keepequal", "source_labels": ["a"], "target_label": "b"}],
        {"a": "x", "b": "y"},
        None,
    ),
    (
        "dropequal drops what is equal",
        [{"action": "dropequal", "source_labels": ["a"], "target_label": "b"}],
        {"a": "x", "b": "x"},
        None,
    ),
    (
        "dropequal keeps what is not",
        [{"action": "dropequal", "source_labels": ["a"], "target_label": "b"}],
        {"a": "x"},
        {"a": "x"},
    ),
    (
        "hashmod",
        [{"action": "hashmod", "source_labels": ["a", "b"], "modulus": 1000, "target_label": "shard"}],
        {"a": "gpu-0", "b": "é"},
        {"a": "gpu-0", "b": "é", "shard": "197"},
    ),
    (
        "labelmap takes a part of the name",
        [{"action": "labelmap", "regex": "__meta_kubernetes_pod_label_(.+)"}],
        {"__meta_kubernetes_pod_label_app": "vllm", "a": "x"},
        {"a": "x", "app": "vllm"},
    ),
    (
        "labelmap with a replacement",
        [{"action": "labelmap", "regex": "(.)(.)", "replacement": "${2}_$1"}],
        {"ab": "x"},
        {"ab": "x", "b_a": "x"},
    ),
    ("labeldrop", [{"action": "labeldrop", "regex": "a.*"}], {"a": "x", "ab": "y", "b": "z"}, {"b": "z"}),
    ("labelkeep", [{"action": "labelkeep", "regex": "__.*|b"}], {"a": "x", "b": "z"}, {"b": "z"}),
    (
        "lowercase",
        [{"action": "lowercase", "source_labels": ["a"], "target_label": "b"}],
        {"a": "GB10-Ä"},
        {"a": "GB10-Ä", "b": "gb10-ä"},
    ),
    (
        "uppercase, the action in any case",
        [{"action": "Uppercase", "source_labels": ["a"], "target_label": "a"}],
        {"a": "gb10"},
        {"a": "GB10"},
    ),
    (
        "a dot is no new line, and digits are ASCII",
        [
            {"source_labels": ["a"], "regex": "x.y", "target_label": "c", "replacement": "dot"},
            {"source_labels": ["b"], "regex": r"\d", "target_label": "d", "replacement": "digit"},
        ],
        {"a": "x\ny", "b": "٣"},
        {"a": "x\ny", "b": "٣"},
    ),
    (
        "an end of line is not the end before it",
        [{"source_labels": ["a"], "regex": "x$", "target_label": "c", "replacement": "end"}],
        {"a": "x\n"},
        {"a": "x\n"},
    ),
    (
        "case can be ignored",
        [{"source_labels": ["a"], "regex": "(?i)VLLM-(.*)", "target_label": "c"}],
        {"a": "vLLM-x"},
        {"a": "vLLM-x", "c": "x"},
    ),
]


def rules(given: list[dict[str, Any]]) -> list[Rule]:
    """The rules as the configuration has them."""
    return [Rule(RelabelSettings.model_validate(rule)) for rule in given]


def visible(labels: Labels | None) -> Labels | None:
    """What Prometheus shows of a target's labels."""
    return None if labels is None else {name: value for name, value in labels.items() if not name.startswith("__")}


@pytest.mark.parametrize(("given", "labels", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_relabelling(given: list[dict[str, Any]], labels: Labels, expected: Labels | None) -> None:
    """One row: rules, labels before, labels after, or None for a target that is dropped."""
    assert visible(relabel({"__address__": ADDRESS, **labels}, rules(given))) == expected


def test_a_real_prometheus_makes_the_same_labels(tmp_path: Path) -> None:
    """Each row as a job of one Prometheus: what it keeps has the labels of the table, what it drops is dropped here."""
    jobs = []
    for number, (_, given, labels, _) in enumerate(CASES):
        (tmp_path / f"{number}.json").write_text(json.dumps([{"targets": [ADDRESS], "labels": labels}]))
        files = [{"files": [f"{number}.json"]}]
        jobs.append({"job_name": f"case-{number}", "file_sd_configs": files, "relabel_configs": given})
    config = yaml.safe_dump({"global": {"scrape_interval": "1h"}, "scrape_configs": jobs})

    def complete(server: Prometheus) -> Any:
        found = server.get("targets")
        everything = found["activeTargets"] + found["droppedTargets"]
        return found if len(everything) == len(CASES) else None

    with prometheus(config, tmp_path) as server:
        found = server.wait_for(complete)
    kept = {target["scrapePool"]: target["labels"] for target in found["activeTargets"]}
    for number, (name, given, labels, expected) in enumerate(CASES):
        theirs = kept.get(f"case-{number}")
        ours = visible(relabel({"__address__": ADDRESS, **labels}, rules(given)))
        if theirs is not None:
            for added in ("job", "instance"):
                theirs.pop(added, None)
        assert (ours, theirs) == (expected, expected), name


BAD_RULES: list[tuple[dict[str, Any], str, bool]] = [
    ({"action": "hashmod", "source_labels": ["a"], "target_label": "b"}, "needs a modulus above zero", True),
    ({"source_labels": ["a"]}, "replace needs a target_label", True),
    ({"source_labels": ["a"], "target_label": "0a"}, "is no target_label", True),
    (
        {"action": "lowercase", "source_labels": ["a"], "target_label": "${1}"},
        "is no target_label for lowercase",
        False,
    ),
    (
        {"action": "uppercase", "source_labels": ["a"], "target_label": "b", "replacement": "x"},
        "takes no replacement",
        True,
    ),
    (
        {"action": "keepequal", "source_labels": ["a"], "target_label": "b", "regex": "x"},
        "keepequal takes no regex",
        True,
    ),
    ({"action": "labeldrop", "regex": "x", "source_labels": ["a"]}, "labeldrop takes no source_labels", True),
    ({"action": "labelmap", "regex": "(.*)", "replacement": "-"}, "is no replacement for labelmap", True),
    ({"source_labels": ["a-b"], "target_label": "c"}, "is no name of a label", True),
    ({"source_labels": ["a"], "target_label": "c", "regex": "("}, "is no regular expression", True),
    ({"source_labels": ["a"], "target_label": "c", "regex": "(?=x)"}, "looks around", True),
    ({"source_labels": ["a"], "target_label": "c", "regex": r"(x)\1"}, "refers back", True),
    ({"source_labels": ["a"], "target_label": "c", "regex": "x++"}, "does not give back", True),
    ({"action": "remove", "source_labels": ["a"]}, "should be", True),
    ({"source_label": ["a"], "target_label": "c"}, "not permitted", True),
    # Where this program is stricter than Prometheus.
    ({"source_labels": ["a"], "target_label": "c", "regex": "(a+)+b"}, "a repeat stands inside a repeat", False),
    ({"source_labels": ["a"], "target_label": "c", "regex": "[[:alpha:]]"}, "is no regular expression", False),
    ({"source_labels": ["a"], "target_label": "c", "regex": r"\pL"}, "is no regular expression", False),
]


@pytest.mark.parametrize(("rule", "words"), [case[:2] for case in BAD_RULES], ids=[words for _, words, _ in BAD_RULES])
def test_rules_that_are_refused(rule: dict[str, Any], words: str) -> None:
    """One row: a rule, and why it is refused."""
    with pytest.raises(ValidationError, match=words):
        RelabelSettings.model_validate(rule)


def test_a_real_promtool_refuses_the_same_rules(tmp_path: Path) -> None:
    """But for those where this program says that it is stricter."""
    paths = [tmp_path / f"{number}.yml" for number in range(len(BAD_RULES))]
    for path, (rule, _, _) in zip(paths, BAD_RULES, strict=True):
        path.write_text(yaml.safe_dump({"scrape_configs": [{"job_name": "x", "relabel_configs": [rule]}]}))
    assert promtool_refuses(paths) == [theirs_too for _, _, theirs_too in BAD_RULES]


def test_no_value_holds_the_program() -> None:
    """Backtracking over the longest value that a target may have ends at once."""
    rule = rules([{"action": "keep", "source_labels": ["a"], "regex": ".*a.*b.*c"}])
    assert relabel({"a": "ab" * 512}, rule) is None
