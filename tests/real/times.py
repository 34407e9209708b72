"""From freeze to first answer: the times of one run, and the table that shows them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from tests.real.chain import LIMITS, Lookout, RealChain

EVENTS = (
    ("stalled", "the exporter's verdict is `stalled`"),
    ("stuck", "the exporter's verdict is `stuck`"),
    ("firing", "`ModelServerStuck` fires in Prometheus"),
    ("webhook", "the remediator has the alert"),
    ("called", "the remediator has confirmed it and calls for the restart"),
    ("returned", "the new server process has been started"),
    ("answered", "the new server gives its first answer"),
    ("recovered", "the remediator has seen that, too: recovered"),
)
"""In the order in which they happen."""

Times = Mapping[str, float]
"""Seconds from the freeze to each event."""


def measure(chain: RealChain, lookout: Lookout, frozen_at: float) -> Times:
    """What the logs and the lookout say; an event that did not happen is absent."""
    at: dict[str, float | None] = {"firing": lookout.firing_at, "answered": lookout.answered_at}
    for event, field in (("verdict", "verdict"), ("attempt step", "step"), ("attempt ended", "outcome")):
        part = "exporter" if event == "verdict" else "remediator"
        for when, entry in chain.events(part, event, frozen_at):
            at.setdefault(str(entry[field]), when)
    at["webhook"] = next((when for when, _ in chain.events("remediator", "alert received", frozen_at)), None)
    known = {name: at.get(name) for name, _ in EVENTS}
    return {name: when - frozen_at for name, when in known.items() if when is not None}


def table(cases: Mapping[str, Times]) -> str:
    """Markdown: a row for each event, a column for each case."""
    return "\n".join(
        [
            "# Measured times",
            "",
            "Seconds from the moment at which the engine of a real vLLM stood still (SIGSTOP on its process) to each",
            "event, in one run of",
            "",
            "<!-- not run here: needs a real vLLM, and writes this page -->",
            "```sh",
            "STALLWATCH_TIMES=docs/measured-times.md make test-real",
            "```",
            "",
            "| event | " + " | ".join(f"frozen while {case}" for case in cases) + " |",
            "|---|" + "---:|" * len(cases),
            *(
                f"| {words} | " + " | ".join(_cell(times, name) for times in cases.values()) + " |"
                for name, words in EVENTS
            ),
            "",
            f"The run: vLLM 0.32.0 on the CPU with a tiny random model, on {os.cpu_count()} cores "
            f"({platform.machine()}) which it shares",
            "with the exporter, Prometheus, Alertmanager and the remediator. Polls, scrapes and rules every second.",
            "Of the limits these were set:",
            "",
            *(f"- `{name}`: {seconds}" for name, seconds in LIMITS.items()),
            "",
            "They can be so short because no healthy step of this model takes a second. The times up to `stuck` grow",
            "with them, and the defaults are longer: vLLM is suspected after 60 s and proven stuck after 180 s at the",
            "earliest. What passes between the start of the new process and its first answer is vLLM's own start.",
            "",
        ]
    )


def _cell(times: Times, name: str) -> str:
    return f"{times[name]:.1f}" if name in times else "-"


def write(cases: Mapping[str, Times]) -> None:
    """Write the table to the file that `STALLWATCH_TIMES` names, if it names one."""
    path = os.environ.get("STALLWATCH_TIMES")
    if path and cases:
        Path(path).write_text(table(cases), encoding="utf-8")
