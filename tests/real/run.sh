#!/usr/bin/env bash
# run.sh [pytest arguments]: the tests on a real vLLM, which is installed first. The project's .venv must be there (make).
# Where vLLM cannot be had it prints "test-real: skipped: REASON" and exits 0.
# STALLWATCH_TIMES=FILE: writes the measured times as a Markdown table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
code=0
said=$(tests/real/install_vllm.sh 2>&1) || code=$?
if [ "$code" -eq 3 ]; then
  reason=$(tail -n 1 <<<"$said")
  echo "test-real: skipped: ${reason#install_vllm.sh: }"
  exit 0
fi
if [ "$code" -ne 0 ]; then
  echo "$said" >&2
  exit "$code"
fi
exec .venv/bin/pytest tests/real -m real "$@"
