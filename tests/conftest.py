"""CI draws the same examples each time, so that a rare one is found at a desk and not in a landing."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
