"""One model server: its verdict over time, its work, its stalls against their limit, asks, restarts, evidence."""

from __future__ import annotations

from grafana import backend_rows as rows
from grafana import layout
from grafana.backend_rows import UNMEASURED, UNWATCHED, one
from grafana.panels import (
    BACKEND,
    BLUE,
    GREY,
    PALE,
    RED,
    SKY,
    WINE,
    YELLOW,
    Json,
    column,
    event,
    link,
    query,
    stat,
    steps,
    table,
    timeline,
    verdict_number,
    verdict_words,
    words,
)

UID = "stallwatch-backend"
NO_REMEDIATOR = "not in the remediator's configuration, or no remediator is scraped"


def now() -> list[Json]:
    """Its state in one line."""
    evidence = [
        link("Evidence: the two pages compared, and why", "${exporter_url}/api/v1/backends/${backend}"),
        link("What each verdict means, and what to do", "${runbooks_url}/"),
    ]
    return [
        stat(
            "Verdict",
            "What the exporter concludes now. Follow the link for the evidence.",
            verdict_number(),
            no_value=UNWATCHED,
            mappings=verdict_words(),
            size=(6, 4),
            links=evidence,
        ),
        stat(
            "Stood still for",
            "The stall clock of its worst rank, up to the last good page.",
            one("stalled_seconds"),
            unit="s",
            no_value=UNMEASURED,
        ),
        stat(
            "Stuck from",
            "The effective limit: it rises when a longer stall ends by itself.",
            one("stallwatch_backend_stuck_after_seconds"),
            unit="s",
            no_value=UNWATCHED,
        ),
        stat(
            "Last progress",
            "How long ago work was last seen on a page. An idle server makes none.",
            f"time() - {one('stallwatch_backend_last_progress_timestamp_seconds')}",
            unit="s",
            no_value="none seen since the exporter started",
        ),
        stat(
            "Restarts in a day",
            "New processes that the exporter saw, whoever caused them.",
            f"round({one('backend:stallwatch_backend_restarts:increase1d')})",
            no_value=UNWATCHED,
            thresholds=steps((None, SKY), (2, YELLOW), (4, RED)),
        ),
        stat(
            "Restarts left",
            "How many the remediator's budget allows now.",
            one("stallwatch_remediation_budget_remaining"),
            no_value=NO_REMEDIATOR,
            mappings=words(("0", "none: reset it", RED)),
        ),
        stat(
            "Held",
            "Whether it is held for maintenance.",
            one("stallwatch_remediation_held"),
            no_value=NO_REMEDIATOR,
            mappings=words(("0", "no", PALE), ("1", "held", YELLOW)),
            links=[link("Who, why and until when", "${remediator_url}/")],
        ),
    ]


def history() -> list[Json]:
    """The verdict over time, and the alerts."""
    runbook = link("Runbook", "${runbooks_url}/${__data.fields.Alert}.md")
    return [
        timeline(
            "Verdict over time",
            "Marks are restarts: by the remediator, by others, and new processes that the "
            "exporter saw. A gap is a time in which nobody watched.",
            size=(24, 5),
        ),
        table(
            "Alerts",
            "What fires for this backend now, with its runbook.",
            [query(f'ALERTS{{{BACKEND},alertstate="firing"}}', instant=True, table=True)],
            {"alertname": "Alert", "severity": "Severity", "backend": "Backend", "Value": "Firing"},
            no_value="nothing fires for this backend",
            size=(24, 5),
            overrides=[
                column("Alert", links=[runbook]),
                column(
                    "Severity",
                    custom__cellOptions={"type": "color-text"},
                    mappings=words(
                        ("critical", "critical: pages", RED),
                        ("warning", "warning: for the day", YELLOW),
                        ("info", "info: context", GREY),
                    ),
                ),
                *(column(name, custom__hidden=True) for name in ("alertstate", "remediation", "Firing")),
            ],
        ),
    ]


def build() -> Json:
    """The page of one backend."""
    return layout.dashboard(
        UID,
        "stallwatch: backend",
        "One model server: its verdict over time and what it rests on, its work, restarts and what was decided.",
        {"Now": now(), "History": history(), "Work": rows.work(), "Proof and decisions": rows.watching()},
        [
            layout.variable_datasource(),
            layout.variable_labels("group", "Group", "label_values(stallwatch_backend_info, group)", several=True),
            layout.variable_labels(
                "backend", "Backend", 'label_values(stallwatch_backend_info{group=~"$group"}, backend)', several=False
            ),
            *layout.addresses(),
        ],
        [
            event(
                "New process",
                GREY,
                f"max by (backend) (increase(stallwatch_backend_restarts_total{{{BACKEND}}}[1m])) > 0",
                "a new process",
            ),
            event(
                "Restarted by the remediator",
                BLUE,
                f"sum by (backend) (increase(stallwatch_remediation_attempts_total{{{BACKEND}}}[1m])) > 0",
                "restarted by the remediator",
            ),
            event(
                "Restarted by others",
                WINE,
                f'sum by (backend) (increase(stallwatch_remediation_restarts_seen_total{{{BACKEND},by="others"}}[1m]'
                ")) > 0",
                "restarted by somebody else",
            ),
        ],
    )
