"""Does every clause of the verdict have a test that fails without it? `python -m tests.mutations`

`table.yml` lists, for each file, a clause in words, a text that must stand in the file exactly once, and the text
that breaks just this clause. Each mutation is made in a copy of the project, never here, and the quick tests of the
exporter are run over the copy: one of them must fail. What no test notices is printed as a survivor, and the exit
code is then 1. It takes about half an hour on two cores, so that `make test` leaves it out.

    python -m tests.mutations                     all of them
    python -m tests.mutations progress asking     those of which the file or the clause holds one of these words
    python -m tests.mutations --jobs 4            with so many copies at once

Properties over drawn histories are left out: what only luck finds is not held by a test. So is the comparison of the
made recordings with their servers: it fails whenever anything changes, and says nothing of what is right.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = Path(__file__).with_name("table.yml")
COPIED = ("exporter", "stallwatch", "remediator", "demo", "tests", "docs", "config", "rules", "pyproject.toml")
PURE = ("progress", "incarnation", "trouble", "asking", "state", "verdict")
QUICK = ("page", "runtimes", "recordings", "cases", "watch", "ask")
TESTS = tuple(f"tests/exporter/test_{name}.py" for name in (*PURE, *QUICK))
LEFT_OUT = "tests/exporter/test_cases.py::test_the_recordings_are_what_their_servers_make"
DEADLINE_SECONDS = 600


class TableError(Exception):
    """The table does not fit the sources; the text says where."""


@dataclass(frozen=True)
class Mutation:
    """One clause, and the edit that takes it away."""

    file: str
    clause: str
    old: str
    new: str

    @contextmanager
    def applied(self, root: Path) -> Iterator[None]:
        """The edit, made below `root` for as long as this lasts. Raises `TableError`."""
        path = root / self.file
        before, times = path.read_text(), path.stat()
        if before.count(self.old) != 1 or self.old == self.new:
            raise TableError(f"{self.file}: {self.clause}: stands {before.count(self.old)} times, not once: {self.old}")
        path.write_text(before.replace(self.old, self.new))
        yield
        path.write_text(before)
        os.utime(path, (times.st_atime, times.st_mtime))  # as old as its bytecode, which is good again


def load(words: Sequence[str] = ()) -> list[Mutation]:
    """The table, or those rows that hold one of the words."""
    table = yaml.safe_load(TABLE.read_text())
    listed = [Mutation(file, **row) for file, rows in table.items() for row in rows]
    return [m for m in listed if not words or any(word in m.file or word in m.clause for word in words)]


def fits(mutations: Sequence[Mutation]) -> None:
    """Raise `TableError` for the first row whose text does not stand in its file exactly once."""
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for mutation in mutations:
            with mutation.applied(copy):
                pass


def copied(folder: Path) -> Path:
    """A copy of what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def ordered(file: str) -> list[str]:
    """The tests, those of the file itself first: most mutations are found by them."""
    own = f"tests/exporter/test_{'page' if file.endswith('.yml') else Path(file).stem}.py"
    return sorted(TESTS, key=lambda name: name != own)


def tested(copy: Path, file: str) -> str:
    """Run the tests over a copy in which `file` is mutated; return the first that failed, or nothing if none did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    # The copy goes before the installed project. Bytecode is kept of what is not mutated, and of nothing else: that of
    # one mutation must not be taken for the next one's.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1" if file else ""}
    present = [name for name in ordered(file) if (copy / name).exists()]
    try:
        done = subprocess.run(
            [*command, *present, "--deselect", LEFT_OUT],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else done.stdout[-300:] + done.stderr[-300:]


def run(mutations: Sequence[Mutation], jobs: int) -> list[Mutation]:
    """Try each mutation; print what became of it, and return the survivors in the order of the table."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(number) for number in range(jobs)]
        copies[0].mkdir()
        if failed := tested(copied(copies[0]), ""):
            raise TableError(f"a test fails already without any mutation: {failed}")
        free: SimpleQueue[Path] = SimpleQueue()
        free.put(copies[0])
        for copy in copies[1:]:
            free.put(shutil.copytree(copies[0], copy))

        def attempt(mutation: Mutation) -> bool:
            copy = free.get()
            with mutation.applied(copy):
                failed = tested(copy, mutation.file)
            free.put(copy)
            print(f"{'found' if failed else 'SURVIVES'}: {mutation.file}: {mutation.clause} {failed}", flush=True)
            return not failed

        with ThreadPoolExecutor(jobs) as pool:
            survived = list(pool.map(attempt, mutations))
    return [mutation for mutation, lives in zip(mutations, survived, strict=True) if lives]


def main() -> int:
    """Run the table; 0 if every mutation was found, 1 if one survives, 2 if the table or the tests do not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only those of which the file or the clause holds one of these")
    parser.add_argument("--jobs", type=int, default=2, help="copies at once (default: 2)")
    arguments = parser.parse_args()
    mutations = load(arguments.words)
    try:
        fits(mutations)
        survivors = run(mutations, arguments.jobs)
    except TableError as error:
        print(f"mutations: {error}", file=sys.stderr)
        return 2
    print(f"{len(mutations)} mutations, {len(survivors)} survive")
    for mutation in survivors:
        print(f"  {mutation.file}: {mutation.clause}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
