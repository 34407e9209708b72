"""The fleet at a glance: who is ill and since when, who restarted what, what the remediator did and why not."""

from __future__ import annotations

from grafana import layout
from grafana import overview_rows as rows
from grafana.overview_rows import DETAIL, GROUP, NO_REMEDIATOR, NONE
from grafana.panels import (
    BACKEND,
    BLUE,
    GREY,
    RED,
    SKY,
    WELL,
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

UID = "stallwatch-overview"
ILL = f'stallwatch_backend_verdict{{{BACKEND},verdict!~"{WELL}"}} == 1'


def _count(verdicts: str) -> str:
    """How many backends have one of these verdicts; 0 while any backend is watched."""
    return f'sum(max by (backend, verdict) (stallwatch_backend_verdict{{{BACKEND},verdict=~"{verdicts}"}}))'


def now() -> list[Json]:
    """One tile for each question of the first minute."""
    bad = steps((None, SKY), (1, RED))
    doubt = steps((None, SKY), (1, YELLOW))
    return [
        stat("Watched", "Backends that an exporter names.", f"count({GROUP})", no_value=NONE),
        stat("Working or idle", "Backends with the verdict busy or idle.", _count(WELL), no_value=NONE),
        stat(
            "Stuck",
            "Proven frozen. The only verdict on which a machine acts.",
            _count("stuck"),
            no_value=NONE,
            thresholds=bad,
        ),
        stat(
            "Down or failing",
            "Refusing, unreadable, or answering every request with an error.",
            _count("down|unreachable|failing"),
            no_value=NONE,
            thresholds=bad,
        ),
        stat(
            "In doubt",
            "Stalled, blocked by a peer, or unmeasured: for a person to look, nothing is restarted.",
            _count("stalled|blocked|unmeasured"),
            no_value=NONE,
            thresholds=doubt,
        ),
        stat(
            "On purpose",
            "Starting, paused, or a proxy that is not measured.",
            _count("starting|paused|proxy"),
            no_value=NONE,
        ),
        stat(
            "Remediator",
            "Whether it restarts or only says what it would do.",
            'max(stallwatch_remediation_mode{mode="restart"})',
            no_value=NO_REMEDIATOR,
            mappings=words(("0", "advises only", GREY), ("1", "restarts", BLUE)),
        ),
        stat(
            "Storm",
            "So many groups in trouble at once that nothing is restarted.",
            "max(stallwatch_remediation_storm)",
            no_value=NO_REMEDIATOR,
            mappings=words(("0", "none", SKY), ("1", "STORM", RED)),
        ),
    ]


def ill() -> list[Json]:
    """Who needs somebody, and the history of all."""

    def only_ill(expr: str) -> Json:
        return query(f"{expr} and on (backend) {ILL}", instant=True, table=True)

    links = [
        link("Its page", DETAIL),
        link("Evidence", "${exporter_url}/api/v1/backends/${__data.fields.Backend}"),
    ]
    return [
        table(
            "Who is not well, and since when",
            "Every backend whose verdict is neither busy nor idle. 'Not well for' counts from the last time it was "
            "seen well, over restarts, and is empty for what was never seen well or is paused. Follow the name to its "
            "page or to the exporter's evidence.",
            [
                only_ill(GROUP),
                only_ill(verdict_number()),
                only_ill(f"max by (backend) (backend:stallwatch_backend_unavailable_seconds:last{{{BACKEND}}})"),
                only_ill(f"max by (backend) (stalled_seconds{{{BACKEND}}})"),
                only_ill(f"max by (backend) (stallwatch_backend_stuck_after_seconds{{{BACKEND}}})"),
            ],
            {
                "backend": "Backend",
                "group": "Group",
                "Value #B": "Verdict",
                "Value #C": "Not well for",
                "Value #D": "Stood still for",
                "Value #E": "Stuck from",
                "Value #A": "Watched",
            },
            no_value="every backend is busy or idle",
            overrides=[
                column("Backend", links=links),
                column("Verdict", mappings=verdict_words(), custom__cellOptions={"type": "color-background"}),
                *(column(name, unit="s") for name in ("Not well for", "Stood still for", "Stuck from")),
                column("Watched", custom__hidden=True),
            ],
        ),
        timeline(
            "Verdicts over time",
            "What the exporter concluded of each backend. Click one in the table above "
            "for its page. A gap is a time in which nobody watched.",
        ),
    ]


def build() -> Json:
    """The overview."""
    return layout.dashboard(
        UID,
        "stallwatch: overview",
        "All model servers that stallwatch watches: who is ill and since when, restarts and by whom, what the "
        "remediator did and why not.",
        {
            "Now": now(),
            "Who needs somebody": ill(),
            "Work": rows.work(),
            "Restarts": rows.restarts(),
            "The remediator": rows.remediator(),
            "stallwatch itself": rows.itself(),
        },
        [
            layout.variable_datasource(),
            layout.variable_labels("group", "Group", "label_values(stallwatch_backend_info, group)", several=True),
            layout.variable_labels(
                "backend", "Backend", 'label_values(stallwatch_backend_info{group=~"$group"}, backend)', several=True
            ),
            *layout.addresses(),
        ],
        [
            event(
                "Restarted by the remediator",
                BLUE,
                f"sum by (backend) (increase(stallwatch_remediation_attempts_total{{{BACKEND}}}[1m])) > 0",
                "{{backend}} restarted by the remediator",
            ),
            event(
                "Restarted by others",
                WINE,
                f'sum by (backend) (increase(stallwatch_remediation_restarts_seen_total{{{BACKEND},by="others"}}[1m]'
                ")) > 0",
                "{{backend}} restarted by somebody else",
            ),
        ],
    )
