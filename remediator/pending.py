"""Decides new requests at once and waiting ones again every few seconds, until they act or end.

It never waits for an attempt, and looks at drivers and exporters for several requests side by side.
"""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor

from remediator import policy, storm
from remediator.config import Backend
from remediator.database import JournalFailed
from remediator.drivers import Description
from remediator.evidence import Sight, Unavailable
from remediator.history import Seen
from remediator.inbox import StoredRequest
from remediator.model import Decision, Fleet, Member, Order, Reason, Request, Verb, View
from remediator.parts import Parts
from remediator.runner import Runner
from stallwatch.logs import get_logger

LOOKERS = 8
LOOKS_A_ROUND = 200
"""Requests that are looked at in one round, those that have waited longest first: evidence must not grow old."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Looked:
    """What driver and exporter said when a request was looked at."""

    description: Description
    view: View | None
    trouble: str = ""


class Pending:
    """The loop of decisions. `run` returns when the program is to end."""

    def __init__(self, parts: Parts, runner: Runner) -> None:
        self._parts, self._runner = parts, runner
        self._log = get_logger("pending")
        self._pool = ThreadPoolExecutor(LOOKERS, thread_name_prefix="look")
        self._decided_at: dict[int, float] = {}
        self._next_round = parts.clock.monotonic()
        self._troubles: tuple[str, ...] = ()
        self._orders: dict[int, Order] = {}
        """What persons said of the requests of this round."""
        self.ticked_at = parts.clock.monotonic()
        """When the loop was last alive, by the monotonic clock."""

    def run(self) -> None:
        """Decide until the program is to end; an error costs one round."""
        parts = self._parts
        while not parts.stop.is_set():
            parts.wake.clear()
            try:
                self.step()
                removed = parts.journal.retention.tick(parts.clock.monotonic(), parts.clock.time())
                for table, rows in removed.items():
                    parts.metrics.rows_removed.labels(table).inc(rows)
            except Exception as error:
                parts.metrics.round_failures.inc()
                known = isinstance(error, JournalFailed)
                self._log.error("round failed", error=str(error), exc_info=not known)
            self.ticked_at = parts.clock.monotonic()
            parts.clock.wait(parts.wake, parts.config.decide_every_seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def step(self) -> None:
        """One round: take up attempts, decide what is due. Raises `JournalFailed`."""
        self._runner.resume()
        mono = self._parts.clock.monotonic()
        every = self._parts.config.decide_every_seconds
        waiting = self._parts.journal.inbox.waiting()
        ids = {request.id for request in waiting}
        self._decided_at = {id_: at for id_, at in self._decided_at.items() if id_ in ids}
        due = [r for r in waiting if mono - self._decided_at.get(r.id, -math.inf) >= every]
        due = sorted(due, key=lambda r: self._decided_at.get(r.id, -math.inf))[:LOOKS_A_ROUND]
        if not due and mono < self._next_round:
            return
        self._next_round = mono + every
        sight = self._parts.evidence.fleet()
        self._tell(sight)
        looked: dict[int, _Looked | None] = {}
        self._orders = self._parts.journal.orders.of([request.id for request in due])
        for request, seen in zip(due, self._pool.map(self._look, due), strict=True):
            looked[request.id] = seen
            self.ticked_at = self._parts.clock.monotonic()  # slow drivers do not make the loop a dead one
        now = self._parts.clock.time()
        members = self._members(sight)
        for request in due:
            seen = looked[request.id]
            if seen is not None:
                members[request.backend] = dataclasses.replace(members[request.backend], view=seen.view)
        fleet = Fleet(self._parts.config.mode, members)
        self._keep_storm(fleet, now)
        history = self._parts.journal.reader.history(now)
        for request in due:
            self._decided_at[request.id] = mono
            if self._decide(request, looked[request.id], history, fleet, now):
                history = self._parts.journal.reader.history(now)

    def _look(self, stored: StoredRequest) -> _Looked | None:
        """Ask driver and exporter; None for a request that is refused whatever they say."""
        backend = self._parts.config.backends.get(stored.backend)
        if backend is None or not stored.restart_asked:
            return None
        if not backend.restart_on and stored.id not in self._orders:
            return None
        description = backend.driver.describe()
        try:
            return _Looked(description, self._parts.evidence.read(stored.backend))
        except Unavailable as error:
            return _Looked(description, None, str(error))

    def _members(self, sight: Sight) -> dict[str, Member]:
        found = {}
        for name, backend in self._parts.config.backends.items():
            view = sight.views.get(name)
            found[name] = Member(name, backend.group, backend.restart_on, backend.minimum_healthy, view)
            if view is not None:
                mismatch = view.group not in ("", backend.group)
                self._parts.metrics.group_mismatch.labels(name).set(float(mismatch))
        return found

    def _keep_storm(self, fleet: Fleet, now: float) -> None:
        holds = self._parts.journal.holds
        before = holds.storm()
        after = storm.advance(before, fleet, self._parts.config.limits, now)
        if after != before:
            holds.keep_storm(after, now, before)
        if (before is None) != (after is None):
            troubled, groups = storm.troubled_groups(fleet)
            event = "storm over" if after is None else "storm"
            self._log.warning(event, troubled_groups=troubled, groups=groups)

    def _decide(self, stored: StoredRequest, seen: _Looked | None, history: Seen, fleet: Fleet, now: float) -> bool:
        """Decide one request; whether that began an attempt."""
        inbox, config = self._parts.journal.inbox, self._parts.config
        request = self._request(stored, seen)
        decision = policy.decide(request, history, fleet, config.limits, now)
        if decision.reason is Reason.EVIDENCE_UNAVAILABLE and seen is not None and seen.trouble:
            decision = dataclasses.replace(decision, detail=seen.trouble)
        if decision.verb is Verb.ACT:
            backend = config.backends[stored.backend]
            stored = dataclasses.replace(stored, identity_noted=request.identity_noted)
            return self._act(stored, backend, decision, now, history.newest_attempt)
        if (decision.verb.value, decision.reason.value) != (stored.decision, stored.reason):
            latch = decision.reason is Reason.BUDGET_EXHAUSTED
            if inbox.decided(stored, decision, now, latch=latch):
                self._announce(stored, decision)
        return False

    def _request(self, stored: StoredRequest, seen: _Looked | None) -> Request:
        """The request with what is known now; the first identity and the first `stuck` are kept in the journal."""
        inbox, noted, stuck = self._parts.journal.inbox, stored.identity_noted, stored.seen_stuck
        if seen is not None and noted is None and seen.description.identity is not None:
            noted = inbox.note_identity(stored.id, seen.description.identity)
        if seen is not None and not stuck and policy.is_proven_stuck(seen.view, self._parts.config.limits):
            stuck = True
            inbox.note_stuck(stored.id)
        return Request(
            backend=stored.backend,
            restart_asked=stored.restart_asked,
            created_at=stored.created_at,
            identity_noted=noted,
            identity_now=seen.description.identity if seen else None,
            identity_detail=seen.description.detail if seen else "",
            running_now=seen.description.running if seen else None,
            seen_stuck=stuck,
            order=self._orders.get(stored.id),
        )

    def _act(self, stored: StoredRequest, backend: Backend, decision: Decision, now: float, newest: int) -> bool:
        ledger, inbox = self._parts.journal.ledger, self._parts.journal.inbox
        kind = backend.driver.kind
        claimed = ledger.claim(
            stored, backend.group, kind, decision.detail, now, newest_seen=newest, overruled=decision.overruled
        )
        if claimed is None:
            return False  # another attempt was faster; the next round says which rung that is
        inbox.decided(stored, decision, now)
        self._announce(stored, decision, attempt=claimed.id)
        self._runner.begin(claimed)
        return True

    def _announce(self, stored: StoredRequest, decision: Decision, **more: object) -> None:
        known = stored.backend in self._parts.config.backends
        self._parts.metrics.decided(stored.backend if known else "", decision)
        self._log.info(
            "decided",
            backend=stored.backend,
            decision=decision.verb.value,
            reason=decision.reason.value,
            detail=decision.detail,
            request=stored.id,
            **more,
        )

    def _tell(self, sight: Sight) -> None:
        """Log what is wrong with the exporters, once per change."""
        if sight.troubles != self._troubles:
            self._troubles = sight.troubles
            if sight.troubles:
                self._log.warning("exporter trouble", detail="; ".join(sight.troubles))
            else:
                self._log.info("exporters answer again")
