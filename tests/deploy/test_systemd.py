"""deploy/systemd: systemd's own verification and its measure of exposure, and what the units promise."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.deploy.files import SYSTEMD, run
from tests.deploy.files import ours as check
from tests.realparts import need
from tests.tools import ROOT

UNITS = sorted(SYSTEMD.glob("*.service"))
PROGRAMS = "/opt/stallwatch/bin"
MOST_EXPOSURE = 20
"""In tenths, of 100. A service without any hardening has 96."""


def placed(unit: Path, folder: Path) -> Path:
    """A copy whose program is this project's own, which is there."""
    text = unit.read_text(encoding="utf-8")
    assert text.count(PROGRAMS) == 1
    copy = folder / unit.name
    copy.write_text(text.replace(PROGRAMS, str(Path(sys.executable).parent)), encoding="utf-8")
    return copy


def analyze(*arguments: str | Path) -> tuple[int, str]:
    """The program systemd-analyze, which needs no systemd that runs."""
    if shutil.which("systemd-analyze") is None:
        need("systemd-analyze", "is not installed; Debian: apt-get install --no-install-recommends systemd")
    need("systemd-analyze", None)
    found = run("systemd-analyze", *arguments)
    return found.returncode, found.stdout


def words(unit: Path, key: str) -> list[str]:
    """All values of a key, in their order."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def test_both_programs_have_a_unit() -> None:
    """And the table below is not empty."""
    assert [unit.name for unit in UNITS] == ["stallwatch-exporter.service", "stallwatch-remediator.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_it_without_a_word(unit: Path, tmp_path: Path) -> None:
    """And finds a key that it does not know."""
    copy = placed(unit, tmp_path)
    assert analyze("verify", "--man=no", copy) == (0, "")
    copy.write_text(copy.read_text(encoding="utf-8").replace("ProtectHome=", "ProtectHouse="), encoding="utf-8")
    assert "'ProtectHouse'" in analyze("verify", "--man=no", copy)[1]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_exposes_little(unit: Path, tmp_path: Path) -> None:
    """By systemd's own measure; without its hardening the same unit fails."""
    copy = placed(unit, tmp_path)
    arguments = ("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", "--no-pager")
    status, said = analyze(*arguments, copy)
    assert status == 0, said
    text = copy.read_text(encoding="utf-8").replace("CapabilityBoundingSet=", "#").replace("SystemCallFilter=", "#")
    copy.write_text(text, encoding="utf-8")
    assert analyze(*arguments, copy)[0] != 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_line_is_one_that_the_program_takes(unit: Path, tmp_path: Path) -> None:
    """With the example configuration of the project, on loopback."""
    (line,) = words(unit, "ExecStart")
    program, *rest = line.split()
    name = program.removeprefix(f"{PROGRAMS}/")
    example = ROOT / "config" / f"{name.removeprefix('stallwatch-')}.yml"
    assert f"--config.file=/etc/stallwatch/{example.name}" in rest
    assert check([name, *rest], tmp_path, example) == 0
    assert any(word.startswith("--web.listen-address=127.0.0.1:") for word in rest)


def test_why_not_notify_is_said() -> None:
    """`Type=notify` without a program that speaks it would never be up."""
    for unit in UNITS:
        assert words(unit, "Type") == ["exec"]
        assert "# Not notify: " in unit.read_text(encoding="utf-8")
    sources = [path for name in ("exporter", "remediator", "stallwatch") for path in (ROOT / name).rglob("*.py")]
    assert not any("NOTIFY_SOCKET" in path.read_text(encoding="utf-8") for path in sources)


def test_the_remediator_keeps_its_journal_where_the_example_has_it() -> None:
    """And has the user that polkit's rule and the file for systemd-sysusers name."""
    unit = SYSTEMD / "stallwatch-remediator.service"
    (state,) = words(unit, "StateDirectory")
    assert f"sqlite:////var/lib/{state}/" in (ROOT / "config" / "remediator.yml").read_text(encoding="utf-8")
    (user,) = words(unit, "User")
    assert f"\nu {user} " in (SYSTEMD / "stallwatch.sysusers.conf").read_text(encoding="utf-8")
    rule = (SYSTEMD / "50-stallwatch.rules").read_text(encoding="utf-8")
    assert f'subject.user == "{user}"' in rule
    assert float(words(unit, "TimeoutStopSec")[0]) > 120.0 + 5.0


def test_the_rule_of_polkit_is_the_one_that_was_tested() -> None:
    """docs/drivers/systemd.md shows it, and the driver's tests run that one on a real polkit."""
    rule = (SYSTEMD / "50-stallwatch.rules").read_text(encoding="utf-8")
    assert rule[rule.index("polkit.addRule") :] in (ROOT / "docs" / "drivers" / "systemd.md").read_text(
        encoding="utf-8"
    )
