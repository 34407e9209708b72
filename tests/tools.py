"""Prometheus's programs for the tests: a test that needs one and cannot have it fails, it is never skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class ToolMissing(Exception):
    """A program is neither in .tools/bin nor in PATH; the text says how to get it."""


def find_tool(name: str) -> Path:
    """Return prometheus, promtool, alertmanager or amtool. Raises `ToolMissing`.

    `.tools/bin` goes first: tools/get_prometheus.sh links what PATH has there if it is new enough.
    """
    local = ROOT / ".tools" / "bin" / name
    if os.access(local, os.X_OK):
        return local
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is neither in .tools/bin nor in PATH: run tools/get_prometheus.sh (or make test)")
    return Path(found)


def run_tool(name: str, *arguments: str | Path, timeout_seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, both outputs in `stdout`; the caller looks at `returncode`."""
    return subprocess.run(
        [find_tool(name), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
