"""When one short request may be sent, and what its answer proves. Pure.

A watchdog that asked a busy server for an answer timed out behind the queue and restarted it eight times in a
day. So: no question while the page shows progress, one at a time, and only silence that a later page confirms
is a miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exporter.model import Answer, AskResult, AskWhen, Limits, Question, RankKey
from exporter.progress import KEPT_ASKS, AskRecord, OpenAsk, RankState, compare, progressed

PAGE_AGE_SECONDS = 1.0
"""A question is sent only on a page read this recently, counted from the start of the reading."""
FOLLOW_UP_MISSES = 3
"""Up to this many misses in a row the next question follows at once; more would prove nothing new."""
MOST_DOUBLINGS = 6


def spacing(rank: RankState, limits: Limits) -> float:
    """Least seconds between asks of this rank; doubles while nothing comes of them."""
    fruitless = rank.fruitless + max(0, rank.misses - FOLLOW_UP_MISSES)
    return float(limits.ask_spacing_seconds * 2 ** min(max(0, fruitless - 1), MOST_DOUBLINGS))


def due(rank: RankState, limits: Limits, now: float, *, starting: bool) -> bool:
    """Whether this rank is in doubt and may be asked now, on its latest page."""
    if limits.ask_when is AskWhen.NEVER or rank.ask or rank.moved or rank.previous is None:
        return False
    if now - rank.latest_began_at > PAGE_AGE_SECONDS:
        return False
    if 0 < rank.misses < FOLLOW_UP_MISSES and rank.asks[-1].result == AskResult.UNANSWERED:
        return True  # only a miss is followed up: a connection that fails at each poll must not be tried at each poll
    since_ask = float("inf") if rank.last_ask_at is None else now - rank.last_ask_at
    if rank.stalled_seconds >= limits.suspect_after_seconds and not starting:
        return since_ask >= spacing(rank, limits)
    idle = not rank.in_flight and not rank.previous.in_flight
    if not idle or (limits.ask_when is not AskWhen.DOUBTFUL and not rank.misses):
        return False
    if starting:  # after a restart the next thing asked is an answer
        return since_ask >= spacing(rank, limits)
    if rank.misses:  # in doubt: whether it answers again is not left until the next usual question
        return since_ask >= spacing(rank, limits)
    quiet = max(limits.idle_ask_seconds, spacing(rank, limits) if rank.fruitless else 0.0)
    return now - rank.alive_at >= limits.idle_ask_seconds and since_ask >= quiet


def _alone(ranks: Mapping[RankKey, RankState], key: RankKey) -> bool:
    """Whether its model has no other rank, so that a request need not name one."""
    return sum(model == key[0] for model, _ in ranks) == 1


def can_ask(ranks: Mapping[RankKey, RankState], key: RankKey, limits: Limits) -> bool:
    """Whether a question can reach this rank at all: of several ranks of a model only where requests can name one."""
    return limits.ask_when is not AskWhen.NEVER and (_alone(ranks, key) or limits.names_ranks)


def choose(ranks: Mapping[RankKey, RankState], limits: Limits, now: float, *, starting: bool) -> Question | None:
    """Return the one question to send now, to the rank most in doubt, or None."""
    if any(rank.ask for rank in ranks.values()):
        return None  # one at a time, and its meaning settled before the next
    candidates = [
        ((rank.misses > 0, rank.stalled_seconds, now - rank.alive_at), key)
        for key, rank in ranks.items()
        if due(rank, limits, now, starting=starting) and can_ask(ranks, key, limits)
    ]
    if not candidates:
        return None
    _, key = max(candidates)
    return Question(key, now, limits.ask_timeout_seconds, named=not _alone(ranks, key))


def sent(rank: RankState, question: Question) -> RankState:
    """The rank with its question under way."""
    return replace(rank, ask=OpenAsk(rank.latest, question.sent_at), last_ask_at=question.sent_at)


def answered(rank: RankState, answer: Answer) -> RankState:
    """Note what came back. Answers and silence wait for a page that confirms them; the rest is settled here."""
    record = AskRecord(answer.sent_at, answer.at, answer.wall, answer.result.value)
    rank = replace(rank, asks=(*rank.asks, record)[-KEPT_ASKS:])
    if rank.ask is None or rank.ask.sent_at != answer.sent_at:
        return rank  # the process it was meant for is gone, or was asleep
    if answer.result in (AskResult.ANSWERED, AskResult.UNANSWERED):
        return replace(rank, ask=replace(rank.ask, answer=answer))
    rank = replace(rank, ask=None, fruitless=rank.fruitless + 1)
    if answer.result is AskResult.FAILED:
        return rank
    # A status is no sign of a working engine, yet it is no silence either: misses are in a row or not at all.
    errors = rank.server_errors + 1 if answer.result is AskResult.SERVER_ERROR else 0
    return replace(rank, misses=0, unanswered_seconds=0.0, server_errors=errors)


def settle(rank: RankState, began_at: float, at: float, wall: float | None, *, live: bool = True) -> RankState:
    """Settle the rank's answered question by a page whose reading began after it, already taken into `rank`.

    Without live counters silence proves nothing while work is in flight, so that the questions grow rare.
    """
    ask = rank.ask
    if ask is None or ask.answer is None or began_at < ask.answer.at:
        return rank
    rank = replace(rank, ask=None)
    since = compare(ask.reference, rank.latest)
    if ask.answer.result is AskResult.UNANSWERED:
        if ask.moved_beyond:
            return rank
        if since.any:
            return progressed(rank, at, wall)
        # The pages on both sides of the question prove that nothing moved since its deadline, too.
        silent = rank.unanswered_seconds if rank.misses else began_at - ask.answer.at
        fruitless = rank.fruitless + (not live and rank.in_flight > 0)
        return replace(rank, misses=rank.misses + 1, unanswered_seconds=silent, fruitless=fruitless)
    rank = replace(rank, misses=0, unanswered_seconds=0.0, server_errors=0)
    if ask.moved_beyond:
        return rank
    if not since.any:
        return replace(rank, fruitless=rank.fruitless + 1, answered_unmoved=True, answers_only=False)
    if rank.in_flight:
        # Alive, but all that moved is what was asked: other requests may hang for ever.
        return replace(rank, fruitless=rank.fruitless + 1, answers_only=True, alive_at=at)
    return progressed(rank, at, wall)
