"""What the tests of the deployment files share: reading them, and running a checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.tools import ROOT

COMPOSE = ROOT / "docker-compose.yml"
CONFIG = ROOT / "config" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"
SYSTEMD = ROOT / "deploy" / "systemd"
OURS = "stallwatch:0.1.0"


def read(path: Path) -> Any:
    """A YAML file of one document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, both outputs in `stdout`; what pip has installed stands beside the interpreter."""
    beside = Path(sys.executable).parent / arguments[0]
    program = beside if beside.exists() else arguments[0]
    return subprocess.run(
        [program, *arguments[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def ours(words: list[str], folder: Path, config: Path) -> int:
    """Check a configuration with the very arguments that a deployment file gives, secrets and all put in `folder`."""
    from exporter.__main__ import main as exporter  # noqa: PLC0415  # programs, not parts of this module
    from remediator.__main__ import main as remediator  # noqa: PLC0415

    text = config.read_text(encoding="utf-8")
    for line in text.splitlines():
        if "_file: /run/secrets/" in line:
            secret = line.partition(": ")[2]
            (folder / Path(secret).name).write_text("s3cret\n", encoding="ascii")
            text = text.replace(secret, str(folder / Path(secret).name))
    (folder / config.name).write_text(text, encoding="utf-8")
    program, *rest = words
    flags = [word for word in rest if not word.startswith("--config.file=")]
    assert len(flags) == len(rest) - 1, "exactly one configuration is named"
    main = {"stallwatch-exporter": exporter, "stallwatch-remediator": remediator}[program]
    return main([*flags, f"--config.file={folder / config.name}", "--config.check"])
