#!/usr/bin/env bash
# install_vllm.sh: vLLM 0.32.0 for the CPU in .venv-vllm/, an environment of its own (about 2 minutes, 3.4 GB; nothing
# is done if it is there already). Exit code 3 and one line with the reason: it cannot be had on this machine.
# PYTHON names the interpreter to build it from (python3.11, else the project's own).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/.venv-vllm
ready=$venv/ready
log=$venv/install.log

cannot() {
  echo "install_vllm.sh: $1" >&2
  exit 3
}

# A change of what is installed, or of how, makes an older environment stale.
want=$(cat "$here/install_vllm.sh" "$here/vllm.lock" | sha256sum | cut -d ' ' -f 1)
if [ -x "$venv/bin/python" ] && [ "$(cat "$ready" 2>/dev/null)" = "$want" ]; then
  exit 0
fi

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || cannot "vllm.lock is for Linux on x86_64, this is $(uname -s) on $(uname -m)"
ldconfig -p | grep -q libnuma.so.1 || cannot "vLLM needs libnuma.so.1 (Debian and Ubuntu: apt-get install libnuma1)"
grep -qw avx2 /proc/cpuinfo || cannot "vLLM's build for the CPU needs AVX2, which this processor lacks"
python=${PYTHON:-$(command -v python3.11 || echo "$root/.venv/bin/python")}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || cannot "no Python 3.11 found"
[ "$version" = 3.11 ] || cannot "vllm.lock is for Python 3.11, $python is $version"
[ "$(df --output=avail -k "$root" | tail -n 1)" -ge 6000000 ] || cannot "less than 6 GB are free on the disk"
[ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -ge 4000000 ] || cannot "less than 4 GB of memory are free"

rm -rf "$venv"
mkdir "$venv"
"$python" -m venv "$venv" >"$log" 2>&1 || cannot "$python -m venv failed, see ${log#"$root/"} (is python3-venv installed?)"
pip() {
  timeout 1500 "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" --retries 2 --timeout 30 \
    --only-binary=:all: >>"$log" 2>&1 && return
  # Not a matter of what can be had here, so nothing to skip over.
  if grep -q 'DO NOT MATCH THE HASHES' "$log"; then
    echo "install_vllm.sh: a downloaded file is not the one in vllm.lock, see ${log#"$root/"}" >&2
    exit 1
  fi
  cannot "pip could not fetch what is needed ($(grep '^ERROR: ' "$log" | tail -n 1 || echo 'it took too long'))"
}
pip install --require-hashes --no-deps -r "$here/vllm.lock"
pip install torch==2.13.0 # not in the lock: its builds, and what they need, differ from index to index

# vLLM asks for its own version under the name "vllm", which this build does not bear, and takes the platform from "+cpu".
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0+cpu.dist-info/METADATA"

"$venv/bin/python" - >>"$log" 2>&1 <<'EOF' || cannot "vLLM does not load here, see ${log#"$root/"}"
import torch
from vllm.platforms import current_platform

assert current_platform.is_cpu()
current_platform.import_kernels()  # warns, no more, if the library does not load
assert hasattr(torch.ops._C, "silu_and_mul")
EOF
echo "$want" >"$ready"
