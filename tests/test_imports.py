"""The direction of imports, read from the sources: what the architecture promises is held here."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("stallwatch", "exporter", "remediator", "demo")
PURE = {
    "exporter/model.py",
    "exporter/progress.py",
    "exporter/incarnation.py",
    "exporter/trouble.py",
    "exporter/asking.py",
    "exporter/state.py",
    "exporter/carry.py",
    "exporter/verdict.py",
    "exporter/evidence.py",
    "remediator/policy.py",
    "remediator/group.py",
}
"""The pure domain: the standard library only, and neither a clock nor a thread."""
IMPURE_STANDARD = {"time", "threading", "datetime", "random", "socket", "os", "subprocess", "asyncio"}
USES_REQUESTS = {"stallwatch/deadline.py", "stallwatch/http.py"}

LAYERS = (
    (
        "exporter.model",
        "exporter.usage",
        "exporter.exposition",
        "exporter.relabel",
        "exporter.targets",
        "exporter.source_settings",
    ),
    ("exporter.runtimes", "exporter.progress", "exporter.sources"),
    ("exporter.page", "exporter.incarnation", "exporter.trouble", "exporter.asking", "exporter.config"),
    ("exporter.state", "exporter.discovered", "exporter.kubernetes_sd", "exporter.promhistory"),
    ("exporter.verdict", "exporter.fetch", "exporter.ask", "exporter.carry", "exporter.discovery"),
    ("exporter.evidence", "exporter.recording", "exporter.stands"),
    ("exporter.snapshot", "exporter.reading", "exporter.backtest_report"),
    ("exporter.watch",),
    ("exporter.fleet", "exporter.metrics"),
    ("exporter.pages.words",),
    ("exporter.pages.row",),
    ("exporter.pages.table", "exporter.pages.backend"),
    ("exporter.pages.routes",),
    ("exporter.web", "exporter.check", "exporter.record", "exporter.backtest"),
    ("exporter.__main__",),
)
"""A module imports only from layers above its own in this list."""


def sources() -> list[Path]:
    """Every module of the packages."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages_of(names: set[str]) -> set[str]:
    """The top-level packages of imported modules."""
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_keep_their_direction(path: Path) -> None:
    """The remediator never imports the exporter, nor the other way; what they share imports neither."""
    package = path.relative_to(ROOT).parts[0]
    allowed = {
        "stallwatch": {"stallwatch"},
        "exporter": {"stallwatch", "exporter"},
        "remediator": {"stallwatch", "remediator"},
        "demo": {"demo"},
    }[package]
    assert packages_of(imports(path)) & set(PACKAGES) <= allowed


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_files_use_the_standard_library_only_and_no_clock(name: str) -> None:
    """The two decisions are functions of their arguments."""
    used = packages_of(imports(ROOT / name))
    assert not used & IMPURE_STANDARD
    assert used <= set(sys.stdlib_module_names) | {"exporter", "remediator"}
    if name.startswith("exporter"):
        inside = {i for i in imports(ROOT / name) if i.startswith("exporter.")}
        pure = {p.removesuffix(".py").replace("/", ".") for p in PURE}
        modules = {i for i in inside if (ROOT / (i.replace(".", "/") + ".py")).exists()}
        assert modules <= pure


def test_requests_is_used_in_one_place() -> None:
    """Every exchange of both programs is bounded by the same code."""
    using = {str(p.relative_to(ROOT)) for p in sources() if "requests" in packages_of(imports(p))}
    assert {name for name in using if not name.startswith("demo/")} == USES_REQUESTS


def test_layers_of_the_exporter() -> None:
    """One direction: a module imports only modules from layers before its own."""
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    files = [path for path in (ROOT / "exporter").rglob("*.py") if path.stem != "__init__"]
    on_disk = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    assert on_disk == set(level)
    for name, number in level.items():
        path = ROOT / (name.replace(".", "/") + ".py")
        for imported in imports(path) & set(level):
            assert level[imported] < number, f"{name} imports {imported}"


def test_modules_stay_small() -> None:
    """Modules are under about 250 lines; what must be larger says why in its own docstring."""
    large = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > 260}
    assert large == {}


def test_the_architecture_has_a_line_for_every_module() -> None:
    """Whoever looks for a file finds what it is for."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules = [p for p in sources() if p.name != "__init__.py" and p.relative_to(ROOT).parts[0] != "demo"]
    assert [str(p.relative_to(ROOT)) for p in modules if p.name not in page] == []
