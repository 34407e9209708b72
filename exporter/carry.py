"""What a backend keeps while nobody watches it: after it vanished from a list and came back, or was configured anew.

Pure. What was held against it is dropped, so that no time counts that nobody saw; what protects it stays: how often
it was asked and when, the limit that was learnt, the counters, and which process it was, so that a restart in between
is still seen.
"""

from __future__ import annotations

from dataclasses import replace

from exporter.incarnation import Incarnation
from exporter.progress import RankState, without_clocks
from exporter.state import State
from exporter.trouble import Trouble


def carried(state: State, now: float, *, moved: bool, same_kind: bool, away: bool) -> State:
    """The state from which the next watch of this name goes on, at `now` (monotonic).

    `moved`: it has another address, so that it is another process, which has to prove itself. `same_kind`: its
    runtime is the same. `away`: it was not watched for a while, so that a refused connection may have gone unseen.
    """
    life, known = state.incarnation, not moved and same_kind
    restarted = moved and life is not None
    if moved and life is not None:
        life = Incarnation(life.generation + 1, None, now, now, proven=False)
    return State(
        incarnation=life,
        ranks={key: _eased(rank, state) for key, rank in state.ranks.items()} if known else {},
        trouble=Trouble(refused=away and known),
        learned_seconds=state.learned_seconds if same_kind else 0.0,
        restarts=state.restarts + restarted,
        restarted_at=now if restarted else state.restarted_at,
        work_total=state.work_total,
        tokens_total=state.tokens_total,
        rate=0.0 if life is not None else None,
        answered_at=None if moved else state.answered_at,
        asks=state.asks,
    )


def _eased(rank: RankState, state: State) -> RankState:
    """Nothing is held against the rank; a question that may still be under way counts as asked."""
    asked = [at for at in (rank.last_ask_at, state.asking.sent_at if state.asking else None) if at is not None]
    return replace(without_clocks(rank), last_ask_at=max(asked, default=None), server_errors=0, kv_only_since=None)
