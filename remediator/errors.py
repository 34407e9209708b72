"""What can go wrong with the journal, as types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import IntegrityError, SQLAlchemyError


class JournalFailed(Exception):
    """The journal cannot be read or written now; the text is one line."""


class Taken(Exception):
    """A UNIQUE index says that somebody else was first."""


class LeaseLost(Exception):
    """This process does not carry the attempt any more: it must not write to it, nor call its driver."""


@contextmanager
def typed() -> Iterator[None]:
    """The databases' many errors as `Taken` or `JournalFailed`."""
    try:
        yield
    except IntegrityError as error:
        raise Taken(_one_line(error)) from error
    except SQLAlchemyError as error:
        raise JournalFailed(_one_line(error)) from error


def _one_line(error: SQLAlchemyError) -> str:
    # The driver's own words: SQLAlchemy would add the statement with everything that was to be written.
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__
