"""The lower rows of a backend's page: its work and stalls, the proof and the decisions."""

from __future__ import annotations

from grafana.panels import BACKEND, BLUE, GREY, RED, YELLOW, Json, column, lines, link, query, table

UNMEASURED = "not measured now (down, unreachable, a proxy, or without metrics)"
UNWATCHED = "no exporter watches this backend"


def one(name: str) -> str:
    """A gauge of the backend, without the exporter's labels."""
    return f"max by (backend) ({name}{{{BACKEND}}})"


def work() -> list[Json]:
    """What it does."""
    return [
        lines(
            "Work rate",
            "Engine steps per second (tokens where the runtime counts no steps). 0 during a long "
            "prompt, which moves nothing but KV use.",
            [
                query(f"max by (backend) (rate(stallwatch_backend_work_total{{{BACKEND}}}[$__rate_interval]))", "work"),
                query(one("engine_progress_rate"), "between the last two pages"),
            ],
            unit="ops",
            no_value=UNMEASURED,
        ),
        lines(
            "Tokens",
            "Tokens per second, prompts and answers, as the server's page counts them.",
            [
                query(
                    f"max by (backend) (rate(stallwatch_backend_tokens_total{{{BACKEND}}}[$__rate_interval]))", "tokens"
                )
            ],
            unit="ops",
            no_value=UNMEASURED,
        ),
        lines(
            "Stood still, against the limits",
            "The stall clock. Above 'suspected' it is stalled; above 'stuck' and "
            "with short requests unanswered it is proven.",
            [
                query(one("stalled_seconds"), "stood still"),
                query(one("stallwatch_backend_suspect_after_seconds"), "suspected from"),
                query(one("stallwatch_backend_stuck_after_seconds"), "stuck from"),
                query(one("stallwatch_backend_prefill_only_seconds"), "nothing but KV use moved"),
            ],
            unit="s",
            no_value=UNMEASURED,
            overrides=[
                _fixed("stood still", BLUE),
                _fixed("suspected from", YELLOW, dashed=True),
                _fixed("stuck from", RED, dashed=True),
                _fixed("nothing but KV use moved", GREY),
            ],
        ),
        lines(
            "Running and waiting",
            "Requests on the last good page. A frozen engine freezes these, too.",
            [
                query(one("stallwatch_backend_requests_running"), "running"),
                query(one("stallwatch_backend_requests_waiting"), "waiting"),
            ],
            no_value=UNMEASURED,
        ),
        lines(
            "Ranks that stand still",
            "The stall clock of each rank: one can be frozen while the others work.",
            [query(f"max by (rank) (stallwatch_rank_stalled_seconds{{{BACKEND}}})", "rank {{rank}}")],
            unit="s",
            no_value=UNMEASURED,
        ),
        lines(
            "Short requests (asks)",
            "Sent only in doubt, never while the page shows progress. Only 'unanswered' can become proof.",
            [
                query(
                    f"sum by (result) (increase(stallwatch_backend_asks_total{{{BACKEND}}}[$__rate_interval]))",
                    "{{result}}",
                )
            ],
            bars=True,
            no_value=UNWATCHED,
        ),
    ]


def _fixed(name: str, colour: str, *, dashed: bool = False) -> Json:
    properties: Json = {"color": {"mode": "fixed", "fixedColor": colour}}
    if dashed:
        properties["custom__lineStyle"] = {"fill": "dash", "dash": [8, 6]}
    return column(name, **properties)


def watching() -> list[Json]:
    """The proof, the polls, the remediator."""
    decisions = f"stallwatch_remediation_decisions_total{{{BACKEND}}}"
    return [
        lines(
            "Unanswered in a row, against what proof takes",
            "For the rank that stands still. No line for 'required' where nothing can be proven.",
            [
                query(one("stallwatch_backend_asks_unanswered"), "unanswered"),
                query(f"{one('stallwatch_backend_asks_required')} < Inf", "required"),
            ],
            no_value=UNWATCHED,
            size=(8, 7),
        ),
        lines(
            "Polls",
            "How long the last poll took, and how many failed in the time of one point.",
            [
                query(one("stallwatch_backend_poll_duration_seconds"), "duration"),
                query(
                    f"sum by (reason) (increase(stallwatch_backend_poll_failures_total{{{BACKEND}}}"
                    "[$__rate_interval])) > 0",
                    "failed: {{reason}}",
                ),
            ],
            no_value=UNWATCHED,
            size=(8, 7),
            overrides=[column("duration", unit="s")],
        ),
        table(
            "What the remediator decided, and why not",
            "Decisions in the shown time with the first rung that said no.",
            [
                query(
                    f"round(sum by (decision, reason) (increase({decisions}[$__range]))) > 0", instant=True, table=True
                )
            ],
            {"decision": "Decision", "reason": "Reason", "Value": "Times"},
            size=(8, 7),
            no_value="nobody asked for its restart in the shown time, or no remediator is scraped",
            links=[link("Its record, with the evidence of each restart", "${remediator_url}/api/v1/actions")],
        ),
    ]
