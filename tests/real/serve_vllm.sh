#!/usr/bin/env bash
# serve_vllm.sh MODEL_DIR PORT [vllm arguments]: serves the tiny model on loopback; `GET /health` says 200 when it is ready.
# One thread and steps of at most 128 tokens: a prompt of 15,000 tokens then takes longer than the limits of the tests,
# as a very long one does on a large model.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: serve_vllm.sh MODEL_DIR PORT [vllm arguments]" >&2 && exit 2; }
model=$1 port=$2
shift 2
export PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.venv-vllm/bin:$PATH"
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
# It runs without a network and reports to nobody.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
exec vllm serve "$model" --served-model-name tiny --load-format dummy --dtype float32 --enforce-eager \
  --max-model-len 16384 --max-num-batched-tokens 128 --max-num-seqs 4 --host 127.0.0.1 --port "$port" "$@"
