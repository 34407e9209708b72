"""Holds one thread of another process still, as a call that never returns would: `python hold_thread.py TID`.

It says "held" when the thread stands, and lets go of it when its standard input ends, or when it ends itself. Linux;
it needs the right to trace the process (the same user; under Yama's `ptrace_scope` 1 or more, root). Standard library
only. Exit code 1 and one line: not to be held.
"""

import ctypes
import os
import select
import sys

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
ALL_CHILDREN = 0x40000000  # __WALL of waitpid(2): threads as well as processes
LOOK_SECONDS = 0.1

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long


def trace(request: int, thread: int) -> None:
    """One call of ptrace(2) without arguments. OSError: it is refused."""
    if _LIBC.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def hold(thread: int) -> None:
    """Hold it until standard input ends or the thread is gone. OSError: it cannot be held."""
    trace(SEIZE, thread)
    trace(INTERRUPT, thread)
    os.waitpid(thread, ALL_CHILDREN)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        # A killed process stays in the table until its tracer has taken note.
        ended, status = os.waitpid(thread, ALL_CHILDREN | os.WNOHANG)
        if ended and not os.WIFSTOPPED(status):
            return
    trace(DETACH, thread)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: hold_thread.py TID")
    try:
        hold(int(sys.argv[1]))
    except OSError as error:
        sys.exit(f"hold_thread.py: {error.strerror}")
