"""Writes the recordings of this folder, or compares them: `python -m tests.recordings.cases.make [--check]`.

Each recording is a server of this folder's modules, watched by the exporter at the limits of its kind; what is
right to conclude stands beside it, written by hand. `<name>.json` holds `case`, `source` (a public thread, or
"constructed"), `runtime`, `accident` (what it prevents), and perhaps `limits` (those changed), `asks` (fewest and
most questions), `restarts`, `pieces_seconds` (the exporter begins anew so often; times count from there), and
`expect`: at each poll from `from_t` to `to_t` one of `verdicts`, none of `never`, this `reason`, this `rank`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.recordings.cases import hangs, healthy, quirks, times
from tests.recordings.cases.case import Polls, recorded

FOLDER = Path(__file__).parent
SERVERS: dict[str, Polls] = {**hangs.SERVERS, **healthy.SERVERS, **quirks.SERVERS, **times.SERVERS}


def truth(name: str) -> Mapping[str, Any]:
    """What is right to conclude in a case, and when."""
    told: Mapping[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return told


def made(name: str) -> bytes:
    """The text of one recording."""
    lines = (json.dumps(line, separators=(",", ":")) for line in recorded(SERVERS[name], truth(name)))
    return "".join(line + "\n" for line in lines).encode()


def differences() -> list[str]:
    """What the folder holds otherwise than it would be written now. Text is compared: compressors differ."""
    kept = {path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz")}
    told = {path.name.removesuffix(".json") for path in FOLDER.glob("*.json")}
    wrong = [f"{name}: no server makes it" for name in sorted((kept | told) - SERVERS.keys())]
    for name in SERVERS:
        file = FOLDER / f"{name}.jsonl.gz"
        if name not in told:
            wrong.append(f"{name}: nothing says what is right")
        elif name not in kept or gzip.decompress(file.read_bytes()) != made(name):
            wrong.append(f"{name}: differs, or is missing")
    return wrong


def main(arguments: list[str]) -> int:
    """Write all, or with --check only compare; 1 if something differs."""
    if arguments == ["--check"]:
        found = differences()
        sys.stdout.write("".join(f"{line}\n" for line in found))
        return 1 if found else 0
    for name in SERVERS:
        data = made(name)
        file = FOLDER / f"{name}.jsonl.gz"
        if not file.exists() or gzip.decompress(file.read_bytes()) != data:
            file.write_bytes(gzip.compress(data, mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
