"""Carries one attempt through its journalled steps, and takes it up again wherever a crash left it.

The call is journalled before it is made. Whoever finds a journalled call without its end looks at the driver's
identity first: changed, and it only waits for recovery; unchanged after the driver's deadline, and it confirms anew
and calls once more, at most; not to be had, and it leaves the rest to a person.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from remediator import policy
from remediator.config import Backend
from remediator.database import LeaseLost
from remediator.drivers import Description, DriverFailed
from remediator.drivers.command import run
from remediator.evidence import Unavailable
from remediator.ledger import StoredAttempt
from remediator.logbook import LOOKED_SECONDS, PROMPT_SECONDS, HandedOver, Logbook, lease_seconds
from remediator.model import Decision, Fleet, Member, Outcome, Request, Step, Verb, View
from remediator.parts import Parts
from remediator.recovery import UNPROVEN, recovered

LOOK_SECONDS = 2.0
"""Between two looks at the driver or the exporter while something is waited for."""
MOST_CALLS = 2


class Attempt:
    """One attempt. `run` returns when it has ended or is handed over; the journal tells which."""

    def __init__(self, parts: Parts, backend: Backend, stored: StoredAttempt) -> None:
        self._parts, self._backend, self._stored = parts, backend, stored
        self._clock, self._book = parts.clock, Logbook(parts, backend, stored)
        self._grace = stored.grace_seconds

    def begin(self) -> None:
        """Carry an attempt that this process has just claimed."""
        self._book.mark(Step.CLAIMED)
        self._guarded(self._from_claim)

    def resume(self) -> None:
        """Take up an attempt that was left open, unless another replica carries it or was faster."""
        taken = self._parts.journal.ledger.take(self._stored.id, lease_seconds(self._backend))
        if taken is None:
            return
        self._stored, self._book = taken, Logbook(self._parts, self._backend, taken)
        self._grace = taken.grace_seconds
        self._book.log.warning("attempt resumed", step=self._stored.last_step.value)
        self._guarded(self._from_journal)

    def _guarded(self, carry: Callable[[], None]) -> None:
        try:
            carry()
        except HandedOver:
            self._book.log.warning("attempt handed over", step=self._book.last_step())
            self._book.release()
        except LeaseLost as error:
            self._parts.metrics.leases_lost.inc()
            self._book.log.error("lease lost", error=str(error))

    # The steps before the call.

    def _from_claim(self) -> None:
        description = self._backend.driver.describe()
        self._book.step(Step.IDENTITY_NOTED, description.identity or description.detail)
        self._save_evidence()
        view, decision = self._check()
        if decision.verb is not Verb.ACT or view is None:
            self._withdraw(decision)
            return
        self._book.step(Step.CONFIRMED, decision.detail)
        self._call(1)

    def _save_evidence(self) -> None:
        values: dict[str, object] = {}
        detail = ""
        try:
            view = self._parts.evidence.read(self._backend.name)
            values = {"evidence": json.dumps(view.document), "sentence": view.sentence}
            detail, self._grace = view.sentence, view.startup_grace_seconds
        except Unavailable as error:
            detail = str(error)
        if self._backend.evidence_command:
            try:
                output = run(self._backend.evidence_command, self._backend.evidence_seconds)
                values["evidence_output"] = output.decode("utf-8", "replace").replace("\0", "")
            except DriverFailed as failure:  # it would help a person, but proves nothing: go on without it
                values["evidence_output"] = failure.detail
        self._book.step(Step.EVIDENCE_SAVED, detail, **values)

    def _check(self) -> tuple[View | None, Decision]:
        """Ask the exporter and then the driver, immediately before the call."""
        name, config = self._backend.name, self._parts.config
        view: View | None
        try:
            view = self._parts.evidence.read(name)
        except Unavailable:
            view = None
        self._book.looked()
        description = self._backend.driver.describe()
        now = self._clock.time()
        request = Request(
            backend=name,
            restart_asked=True,
            created_at=now,
            identity_noted=self._stored.identity_before,
            identity_now=description.identity,
            identity_detail=description.detail,
            running_now=description.running,
            seen_stuck=True,
            order=self._parts.journal.orders.of([self._stored.request_id]).get(self._stored.request_id),
        )
        member = Member(name, self._backend.group, self._backend.restart_on, self._backend.minimum_healthy, view)
        history = self._parts.journal.reader.history(now)
        return view, policy.confirm(request, history, Fleet(config.mode, {name: member}), config.limits, now)

    def _withdraw(self, decision: Decision) -> None:
        wanted = decision.verb is Verb.WAIT
        self._book.finish(Outcome.WITHDRAWN, decision.reason, decision.detail, still_wanted=wanted)

    # The call.

    def _call(self, number: int) -> None:
        if self._parts.stop.is_set():
            raise HandedOver
        driver, metrics = self._backend.driver, self._parts.metrics
        self._book.must_be_prompt(LOOKED_SECONDS)
        self._book.looked()
        self._book.call(number)
        self._book.must_be_prompt(PROMPT_SECONDS)  # the journal has a call now, which nobody has made
        metrics.attempts.labels(self._backend.name, driver.kind).inc()
        began = self._clock.monotonic()
        failure: DriverFailed | None = None
        try:
            driver.restart(driver.timeout_seconds, self._stored.identity_before)
        except DriverFailed as failed:
            failure = failed
        except Exception as error:  # a driver's own mistake must not leave the attempt without an end
            failure = DriverFailed("error", f"{type(error).__name__}: {error}")
        metrics.action_seconds.labels(driver.kind).observe(self._clock.monotonic() - began)
        reason, detail = (failure.reason, failure.detail) if failure else (None, "")
        self._book.step(Step.RETURNED, detail, driver_failure=reason)
        self._after_return(reason, detail)

    def _after_return(self, failure: str | None, detail: str) -> None:
        # `replaced`: somebody was faster, and what is there now is not ours.
        if failure == "replaced" or (failure is not None and not self._book.changed(self._backend.driver.describe())):
            self._book.finish(Outcome.FAILED, failure, detail)
            return
        self._watch_identity()

    # After the call.

    def _watch_identity(self) -> None:
        while True:
            elapsed = self._book.elapsed(Step.RETURNED)
            description = self._backend.driver.describe()
            if self._book.changed(description):
                self._identity_changed(description)
                return
            if elapsed >= self._patience(description):
                break
            self._book.wait(LOOK_SECONDS)
        if description.identity is None:
            self._book.finish(Outcome.FAILED, "identity_unavailable", description.detail)
        else:
            detail = f"the driver returned, and {elapsed:.0f} s later the identity is still {description.identity}"
            self._book.finish(Outcome.FAILED, "identity_unchanged", detail)

    def _patience(self, description: Description) -> float:
        """Seconds from the driver's return until an identity must have come.

        None at all is no sign that nothing happened: the old life is over, and its successor may wait for a node or
        load an image.
        """
        least = self._parts.config.identity_change_seconds
        if description.identity is not None:
            return least
        return max(least, self._grace if self._grace is not None else policy.GRACE_SECONDS)

    def _identity_changed(self, description: Description) -> None:
        self._book.step(Step.IDENTITY_CHANGED, description.identity or "", identity_after=description.identity)
        self._watch_recovery()

    def _watch_recovery(self) -> None:
        grace = self._grace if self._grace is not None else policy.GRACE_SECONDS
        # Without its end in the journal the call may have been over long ago or just now: count from what was seen.
        after = Step.RETURNED if self._book.has(Step.RETURNED) else Step.IDENTITY_CHANGED
        while True:
            elapsed, changed = self._book.elapsed(after), self._book.elapsed(Step.IDENTITY_CHANGED)
            try:
                view = self._parts.evidence.read(self._backend.name)
                last = view.sentence or view.verdict
                how = recovered(view, elapsed, self._parts.config.limits)
            except Unavailable as error:
                last, how = str(error), None
            if how is not None:
                seconds = self._parts.metrics.recovery_seconds.labels(self._backend.driver.kind)
                seconds.observe(elapsed)
                self._book.finish(Outcome.RECOVERED, "unproven" if how == UNPROVEN else "proven", how)
                return
            if changed >= grace:
                self._book.finish(Outcome.FAILED, "not_recovered", f"not well after {changed:.0f} s: {last}")
                return
            self._book.wait(LOOK_SECONDS)

    # Taking it up again.

    def _from_journal(self) -> None:
        stored = self._stored
        if stored.calls == 0:
            detail = "the program ended before the driver was called"
            self._book.finish(Outcome.WITHDRAWN, "interrupted", detail, still_wanted=True)
        elif stored.last_step is Step.IDENTITY_CHANGED:
            self._watch_recovery()
        elif stored.last_step is Step.RETURNED:
            self._after_return(stored.driver_failure, "the driver's call had failed when the program ended")
        else:
            self._after_lost_call()

    def _after_lost_call(self) -> None:
        """A call was journalled and its end was not: was the driver called, and did it do anything?"""
        stored, timeout = self._stored, self._backend.driver.timeout_seconds
        left = min(max(0.0, (stored.deadline_at or 0.0) - self._clock.time()), timeout)
        description = self._look_until(self._clock.monotonic() + left)
        if self._book.changed(description):
            self._identity_changed(description)
        elif description.identity is None:
            self._book.finish(Outcome.UNKNOWN, "identity_unavailable", description.detail)
        elif stored.calls >= MOST_CALLS:
            self._book.finish(Outcome.FAILED, "identity_unchanged", "two calls were begun and the identity is the same")
        else:
            self._call_again()

    def _look_until(self, until: float) -> Description:
        while True:
            description = self._backend.driver.describe()
            left = until - self._clock.monotonic()
            if left <= 0 or self._book.changed(description):
                return description
            self._book.wait(min(left, LOOK_SECONDS))

    def _call_again(self) -> None:
        until = self._clock.monotonic() + self._parts.config.identity_change_seconds
        while True:
            view, decision = self._check()
            if decision.verb is Verb.ACT and view is not None:
                if self._stored.last_step is not Step.CONFIRMED:
                    self._book.step(Step.CONFIRMED, decision.detail)
                self._call(MOST_CALLS)
                return
            if decision.verb is Verb.REFUSE or self._clock.monotonic() >= until:
                self._book.finish(
                    Outcome.FAILED, "identity_unchanged", f"the call was lost; no second one: {decision.detail}"
                )
                return
            self._book.wait(LOOK_SECONDS)
