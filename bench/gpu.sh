#!/usr/bin/env bash
# What only a GPU can tell, in at most 8 minutes: `bash bench/gpu.sh`. It needs no network.
#
#   PYTHON=python3        interpreter with jax for CUDA, numpy and pytest
#   OUT=./out             folder of JSON and logs
#   PAGEDJAX_GPU_SH_DRY=1 run the same parts in tiny shapes, on a CPU too, to try this script
#
# Each part has its own budget and its own process: one that fails, or hangs, loses no other's
# results. It ends with 0 if every part that could run did.
set -u

PYTHON=${PYTHON:-python3}
DRY=${PAGEDJAX_GPU_SH_DRY:-0}
LIMIT=465 # seconds of all parts; what is over is for killing one that does not stop
KILL_AFTER=10

mkdir -p "${OUT:-./out}" || exit 1
OUT=$(cd "${OUT:-./out}" && pwd) || exit 1
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; esac
cd "$(dirname "$0")/.." || exit 1
SECONDS=0
failed=0
: >"$OUT/summary.txt"

note() {
  echo "$*" | tee -a "$OUT/summary.txt"
}

# part NAME BUDGET COMMAND...: at most BUDGET seconds, or what is left of LIMIT.
part() {
  local name=$1 budget=$2 left=$((LIMIT - SECONDS)) start=$SECONDS status
  shift 2
  if ((budget > left)); then budget=$left; fi
  if ((budget < 10)); then
    note "$name: not run, no time is left"
    failed=1
    return 0
  fi
  echo
  echo "=== $name: at most $budget s of the $left s that are left ==="
  timeout -k "$KILL_AFTER" "$budget" "$@" 2>&1 | tee "$OUT/$name.log"
  status=${PIPESTATUS[0]}
  case $status in
    0) note "$name: done in $((SECONDS - start)) s" ;;
    124 | 137) note "$name: stopped after $((SECONDS - start)) s; its JSON has what was done" ;;
    *) note "$name: FAILED with status $status after $((SECONDS - start)) s" ;;
  esac
  if ((status != 0)); then failed=1; fi
  return 0
}

if command -v nvidia-smi >/dev/null; then
  timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
fi
timeout 60 "$PYTHON" - <<'PY' | tee "$OUT/machine.txt"
import importlib.metadata as metadata
import platform

print("python", platform.python_version())
for name in (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12", "numpy", "pytest", "flax", "optax", "orbax-checkpoint", "transformers",
    "tokenizers", "safetensors", "gguf", "matplotlib",
):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "is not here")
PY
if ! timeout 90 "$PYTHON" -c '
import sys

import jax

devices = jax.devices()
print(devices)
sys.exit(devices[0].platform not in ("gpu", "cuda") and sys.argv[1] != "1")
' "$DRY"; then
  note "there is no GPU that jax can use; nothing was run"
  exit 1
fi

attention=("$PYTHON" -m bench.attention --repeats 5)
engine=("$PYTHON" -m bench.engine_random --json "$OUT/engine.json")
tests=("$PYTHON" -m pytest -q -m gpu -W default -p no:cacheprovider)
tests+=("--junitxml=$OUT/tests.xml" tests/kernels/test_gpu_kernels.py)

if [ "$DRY" = 1 ]; then
  tiny=(--shapes smollm2-135m --batches 2 --contexts 32 --chunk 16 --repeats 1 --no-facts)
  part tests 60 "${tests[@]}"
  # Without a GPU it refuses in one line: to be seen, and no failure.
  part tune 30 bash -c '"$@" || echo "(a CPU cannot tune)"' tune \
    "${attention[@]}" "${tiny[@]}" --tune --tune-seconds 20 --json "$OUT/tune.json"
  part decode 40 "${attention[@]}" "${tiny[@]}" --kinds decode --json "$OUT/decode.json"
  part prefill 40 "${attention[@]}" "${tiny[@]}" --kinds prefill --json "$OUT/prefill.json"
  engine+=(--model tiny --batches 1,4 --prompt 16 --output 16)
else
  part tests 120 "${tests[@]}"
  part tune 80 "${attention[@]}" --tune --tune-seconds 60 --shapes llama-3-8b --dtypes bf16,int8 \
    --batches 32 --contexts 4096 --json "$OUT/tune.json"
  # Where measured tables are, so that they can be brought home.
  if [ -d pallas_kernels/tuned ]; then cp -r pallas_kernels/tuned "$OUT/"; fi
  part decode 100 "${attention[@]}" --kinds decode --shapes llama-3-8b --batches 32,1,128 \
    --contexts 4096,1024,16384 --seconds 85 --json "$OUT/decode.json"
  part prefill 45 "${attention[@]}" --kinds prefill --shapes llama-3-8b --dtypes bf16,int8 \
    --seconds 30 --json "$OUT/prefill.json"
  engine+=(--model llama-3-8b --batches 32,128,1)
fi

if timeout 60 "$PYTHON" -c 'import pagedjax' 2>"$OUT/import.log"; then
  part engine 130 "${engine[@]}"
else
  note "engine: skipped, pagedjax cannot be imported: $(tail -n 1 "$OUT/import.log")"
fi

if [ "$DRY" != 1 ] && ((LIMIT - SECONDS >= 25)); then # of what is left, more shapes
  part shapes 60 "${attention[@]}" --kinds decode --shapes llama-3-70b-tp8,smollm2-135m \
    --batches 32,1 --contexts 4096 --seconds 40 --json "$OUT/shapes.json"
fi

echo
echo "=== $SECONDS s in all; results are in the folder $(basename "$OUT") ==="
cat "$OUT/summary.txt"
exit "$failed"
