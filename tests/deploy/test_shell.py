"""Every shell script of the project, by shellcheck."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.files import run
from tests.tools import ROOT

EXCUSED = {
    "tools/get_prometheus.sh": "SC2015",  # `a && b || fail`: fail is meant for both
    "tests/real/serve_vllm.sh": "SC2155",  # the status of a cd into the script's own folder
}
"""What may be said of a file, and why it is right there."""


def scripts() -> list[Path]:
    """All that a shell runs, but for what `make` has unpacked or built."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    return [ROOT / ".ci" / "run", *ROOT.glob("*.sh"), *(path for folder in folders for path in folder.rglob("*.sh"))]


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    """Of any script; and it does find a variable that is split."""
    found = scripts()
    assert {".ci/run", "tools/get_prometheus.sh"} <= {str(path.relative_to(ROOT)) for path in found}
    for path in found:
        excused = EXCUSED.get(str(path.relative_to(ROOT)))
        said = run("shellcheck", *([f"--exclude={excused}"] if excused else []), path)
        assert (said.returncode, said.stdout) == (0, "")
    wrong = tmp_path / "wrong.sh"
    wrong.write_text("#!/bin/sh\nrm $1\n", encoding="ascii")
    assert "SC2086" in run("shellcheck", wrong).stdout
