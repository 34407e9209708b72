#!/usr/bin/env bash
# run.sh [pytest arguments]: the tests on real model servers, vLLM and llama.cpp's llama-server, each of which is
# installed first. The project's .venv must be there (make). One that cannot be had is left out, with a line
# "test-real: skipped: SERVER: REASON"; pytest decides the exit code, which is 0 if there is nothing to test on.
# REAL="vLLM" or REAL="llama-server": only that one; building llama-server from source takes 10 minutes and more.
# STALLWATCH_TIMES=FILE: writes the measured times as a Markdown table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
declare -A installers=([vLLM]=vllm [llama-server]=llama)
chosen=() table=()
for server in ${REAL:-vLLM llama-server}; do
  file=${installers[$server]}
  code=0
  said=$("tests/real/install_$file.sh" 2>&1) || code=$?
  case $code in
    0)
      chosen+=("tests/real/test_$file.py")
      table+=("test-real: run: $server")
      ;;
    3)
      reason=$(tail -n 1 <<<"$said")
      echo "test-real: skipped: $server: ${reason#install_"$file".sh: }"
      table+=("test-real: skipped: $server: ${reason#install_"$file".sh: }")
      ;;
    *)
      echo "$said" >&2
      exit "$code"
      ;;
  esac
done
[ ${#chosen[@]} -gt 0 ] || exit 0
code=0
.venv/bin/pytest "${chosen[@]}" -m real "$@" || code=$?
printf '%s\n' "${table[@]}"
exit "$code"
