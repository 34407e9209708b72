"""The real parts that tests need, and a table at the end of a run that says which were had and which were not."""

from __future__ import annotations

import pytest

_SEEN: dict[str, str] = {}


def need(part: str, why_not: str | None) -> None:
    """Note that `part` is used, or skip the test with the reason why it cannot be had here."""
    _SEEN[part] = why_not or "used"
    if why_not is not None:
        pytest.skip(f"{part}: {why_not}")


def table() -> list[str]:
    """One line a part, for the end of a run."""
    width = max((len(part) for part in _SEEN), default=0)
    return [f"{part:{width}}  {_SEEN[part]}" for part in sorted(_SEEN)]
