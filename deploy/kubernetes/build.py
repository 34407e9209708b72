"""Writes prometheusrule.yaml: rules/alerts/*.yml and rules/recording.yml as one PrometheusRule.

`python deploy/kubernetes/build.py`; with `--check` it only says whether the file is what would be written.
Exit codes: 0 as it should be; 1 the file differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = Path(__file__).resolve().parent / "prometheusrule.yaml"
HEAD = """\
# Made by deploy/kubernetes/build.py from rules/: change those. For the Prometheus operator; what its Prometheus selects
# rules by, such as `release`, is yours to add.
"""


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def sources() -> list[Path]:
    """The files of rules, in the order of their names."""
    return [*sorted((ROOT / "rules" / "alerts").glob("*.yml")), ROOT / "rules" / "recording.yml"]


def build() -> str:
    """The manifest's text."""
    groups: list[Any] = []
    for path in sources():
        groups += yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "stallwatch",
            "namespace": "stallwatch",
            "labels": {"app.kubernetes.io/name": "stallwatch"},
        },
        "spec": {"groups": groups},
    }
    return HEAD + yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(prog="deploy/kubernetes/build.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the file is in step with rules/")
    made = build()
    if not parser.parse_args(argv).check:
        FILE.write_text(made, encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == made:
        return 0
    sys.stderr.write(f"{FILE.relative_to(ROOT)} is not in step with rules/: run deploy/kubernetes/build.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
