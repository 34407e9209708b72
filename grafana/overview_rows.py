"""The lower rows of the overview: work, restarts, the remediator, stallwatch itself."""

from __future__ import annotations

from grafana.panels import BACKEND, GREY, RED, YELLOW, Json, column, lines, link, query, table, words

DETAIL = "/d/stallwatch-backend?var-backend=${__data.fields.Backend}&var-datasource=${datasource}"
GROUP = f"max by (backend, group) (stallwatch_backend_info{{{BACKEND}}})"
NONE = "no exporter is scraped"
NO_REMEDIATOR = "no remediator is scraped"


def _of_groups(expr: str) -> str:
    return f"sum by (group) ({GROUP} * on (backend) group_left () {expr})"


def work() -> list[Json]:
    """What the groups do."""
    none = "no backend of these groups can be measured"
    return [
        lines(
            "Work by group",
            "Engine steps per second (tokens where the runtime counts no steps), over restarts of the servers.",
            [query(_of_groups("backend:stallwatch_backend_work:rate5m"), "{{group}}")],
            unit="ops",
            no_value=none,
            size=(8, 8),
        ),
        lines(
            "Waiting by group",
            "Requests in the queues. A queue that only grows while nothing is completed is an alert.",
            [query(_of_groups("max by (backend) (stallwatch_backend_requests_waiting)"), "{{group}}")],
            no_value=none,
            size=(8, 8),
        ),
        lines(
            "Available by group",
            "Share of a group's measured backends that are busy or idle.",
            [query(f"group:stallwatch_backend_available:avg and on (group) {GROUP}", "{{group}}")],
            unit="percentunit",
            max=1,
            no_value=none,
            size=(8, 8),
        ),
    ]


def restarts() -> list[Json]:
    """Restarts and by whom."""
    seen = f"stallwatch_remediation_restarts_seen_total{{{BACKEND}}}"
    return [
        lines(
            "Restarts seen, by whom",
            "By us: the remediator's own. By others: people, other watchdogs, crashes. "
            "Two deciders for one server make restart loops.",
            [query(f"sum by (by) (increase({seen}[$__rate_interval]))", "by {{by}}")],
            bars=True,
            no_value=NO_REMEDIATOR,
        ),
        table(
            "Restarts in the shown time",
            "New processes that the exporter saw, and those the remediator knows, by whom. Rounded; only backends "
            "that were restarted.",
            [
                query(
                    f"round(max by (backend) (increase(stallwatch_backend_restarts_total{{{BACKEND}}}[$__range]))) > 0",
                    instant=True,
                    table=True,
                ),
                query(
                    f"round(sum by (backend) (increase(stallwatch_remediation_restarts_seen_total{{{BACKEND},"
                    'by="us"}[$__range]))) > 0',
                    instant=True,
                    table=True,
                ),
                query(
                    f"round(sum by (backend) (increase(stallwatch_remediation_restarts_seen_total{{{BACKEND},"
                    'by="others"}[$__range]))) > 0',
                    instant=True,
                    table=True,
                ),
            ],
            {"backend": "Backend", "Value #A": "Seen by the exporter", "Value #B": "By us", "Value #C": "By others"},
            no_value="nothing was restarted in the shown time",
            size=(12, 8),
            overrides=[column("Backend", links=[link("Its page", DETAIL)])],
        ),
    ]


def remediator() -> list[Json]:
    """What it did, and why not."""
    decisions = 'stallwatch_remediation_decisions_total{backend=~"$backend|"}'
    flag = words(("0", "no", GREY), ("1", "yes", YELLOW))

    def state(name: str) -> Json:
        return query(f"max by (backend) (stallwatch_remediation_{name}{{{BACKEND}}})", instant=True, table=True)

    return [
        table(
            "What it decided, and why not",
            "Decisions in the shown time with the first rung of the safety ladder that said no. An empty backend: "
            "alerts for names that are not configured.",
            [
                query(
                    f"round(sum by (backend, decision, reason) (increase({decisions}[$__range]))) > 0",
                    instant=True,
                    table=True,
                )
            ],
            {"backend": "Backend", "decision": "Decision", "reason": "Reason", "Value": "Times"},
            no_value="nobody asked for a restart in the shown time, or no remediator is scraped",
            size=(12, 8),
            links=[link("Its record", "${remediator_url}/")],
        ),
        table(
            "What it would do now",
            "For each configured backend: whether a restart is under way or waits, whether it is held for "
            "maintenance, and how many restarts the budget allows. None left: a person has to reset it.",
            [
                state("in_progress"),
                state("waiting"),
                state("held"),
                state("budget_remaining"),
                query(
                    f"max by (backend) (stallwatch_remediation_last_action_timestamp_seconds{{{BACKEND}}}) * 1000",
                    instant=True,
                    table=True,
                ),
            ],
            {
                "backend": "Backend",
                "Value #A": "Under way",
                "Value #B": "Waiting",
                "Value #C": "Held",
                "Value #D": "Restarts left",
                "Value #E": "Last restart",
            },
            no_value=NO_REMEDIATOR,
            size=(12, 8),
            overrides=[
                *(column(name, mappings=flag) for name in ("Under way", "Waiting", "Held")),
                column(
                    "Restarts left", mappings=words(("0", "none left", RED)), custom__cellOptions={"type": "color-text"}
                ),
                column("Last restart", unit="dateTimeFromNow"),
            ],
        ),
    ]


def itself() -> list[Json]:
    """Whether what is shown above can be believed."""
    return [
        lines(
            "Programs that answer",
            "1: scraped. 0: not, and nothing is watched or restarted by it.",
            [query('up{job=~"stallwatch-.+"}', "{{job}} {{instance}}")],
            max=1,
            no_value="neither program is a target of this Prometheus",
            size=(6, 7),
        ),
        lines(
            "Age of what is shown",
            "The oldest last good page by Prometheus's clock. Negative: a clock is wrong.",
            [query(f"max(time() - stallwatch_backend_last_observation_timestamp_seconds{{{BACKEND}}})", "oldest page")],
            unit="s",
            no_value="no page was ever read",
            size=(6, 7),
        ),
        lines(
            "Polls that failed",
            "By reason. Loading and refused around a restart are no trouble.",
            [
                query(
                    f"sum by (reason) (rate(stallwatch_backend_poll_failures_total{{{BACKEND}}}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
            unit="cps",
            bars=True,
            no_value=NONE,
            size=(6, 7),
        ),
        lines(
            "Deliveries to the remediator",
            "By the status they were answered with. Anything but 202 was not taken up.",
            [query("sum by (code) (increase(stallwatch_webhook_requests_total[$__rate_interval]))", "{{code}}")],
            bars=True,
            no_value=NO_REMEDIATOR,
            size=(6, 7),
        ),
    ]
