"""The page about faults and the tests that do them name each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_page_and_the_tests_name_each_other() -> None:
    """Every test here has its row, and every row a test or a file that is there."""
    here = {
        node.name
        for path in HERE.glob("test_*.py")
        if path.name != "test_table.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert set(re.findall(r"`(test_\w+)`", PAGE)) == here
    for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (HERE.parents[1] / name).exists(), name
