"""What a page says of each verdict: its tone and shape, how bad it is, and what it means in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model import AskResult, Verdict


@dataclass(frozen=True, slots=True)
class Look:
    """How a verdict is shown. `alert`: the alert whose runbook speaks of it; empty: there is none."""

    tone: str
    shape: str
    means: str
    alert: str = ""


LOOKS = {
    Verdict.STUCK: Look(
        "bad", "octagon", "Proven: it neither works nor answers. It needs a restart.", "ModelServerStuck"
    ),
    Verdict.DOWN: Look("bad", "cross", "Nothing listens at its address.", "ModelServerDown"),
    Verdict.FAILING: Look("bad", "square", "It answers, but with server errors only.", "ModelServerFailing"),
    Verdict.UNREACHABLE: Look(
        "bad", "broken", "It listens, but gives no page that could be read.", "ModelServerUnreachable"
    ),
    Verdict.STALLED: Look(
        "warn",
        "triangle",
        "Suspicion, not proof: it is not restarted. Somebody should look.",
        "ModelServerStalled",
    ),
    Verdict.BLOCKED: Look(
        "warn", "barrier", "It answers, but all its requests wait for another server.", "ModelServerBlocked"
    ),
    Verdict.UNMEASURED: Look(
        "warn", "question", "It has no metrics that could be used, so it is not watched.", "ModelServerUnmeasured"
    ),
    Verdict.STARTING: Look(
        "note", "rise", "A new process that has neither worked nor answered yet.", "ModelServerStarting"
    ),
    Verdict.PAUSED: Look("note", "pause", "It stands still on purpose."),
    Verdict.PROXY: Look(
        "note", "fork", "Several servers answer here: watch each of them directly.", "ModelServerLooksLikeProxy"
    ),
    Verdict.BUSY: Look("good", "disc", "Requests are in flight."),
    Verdict.IDLE: Look("good", "ring", "Nothing is in flight."),
}
"""Every verdict, the worst first: the order in which the table begins."""

SEVERITY = {verdict: number for number, verdict in enumerate(LOOKS)}

ASKS = {
    AskResult.ANSWERED: "answered",
    AskResult.UNANSWERED: "not one byte came back",
    AskResult.SERVER_ERROR: "answered with a server error",
    AskResult.REJECTED: "rejected: configuration or load, which says nothing of the engine",
    AskResult.FAILED: "not sent, or the connection broke: says nothing",
}

NUMBERS = {
    "running": "requests running",
    "waiting": "requests waiting",
    "deferred": "requests deferred on a peer",
    "kv_use": "KV cache use, 0 to 1",
}
"""Values of a page that are no counters; every other one is a counter of work."""

LIMITS = {
    "poll_interval_seconds": "a page is read every",
    "poll_timeout_seconds": "a reading may take",
    "suspect_after_seconds": "stalled, if it stands still for",
    "stuck_after_seconds": "stuck, if it is proven for (as configured)",
    "effective_stuck_after_seconds": "stuck, if it is proven for (in force)",
    "ask_timeout_seconds": "a short request waits for its first byte",
    "idle_ask_seconds": "an idle rank is asked every",
    "startup_grace_seconds": "a new process has time to start for",
    "down_after_seconds": "down, if it refuses for",
    "unreachable_after_seconds": "unreachable, if it gives no page for",
    "restart_hold_seconds": "a restart is shown in restart_detected for",
    "long_prefill_seconds": "a prefill is called long after",
    "restart_unconfirmed_after_seconds": "a stall that nothing can confirm is taken as proof after",
}
