#!/usr/bin/env bash
# Make .venv with what this host needs: the CUDA extra where an NVIDIA driver answers, else the CPU extra.
# Does nothing when .venv already matches pyproject.toml and the kernel sources; interrupted, it goes on next time.
set -euo pipefail
cd "$(dirname "$0")/.."
trap 'echo "setup: interrupted; the next run goes on from here" >&2; exit 130' INT
step() { echo "setup: $*" >&2; }
install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }
extra=cpu
if command -v nvidia-smi >/dev/null 2>&1 && timeout 10 nvidia-smi -L >/dev/null 2>&1; then extra=cuda,cpu; fi
stamp=.venv/.glm53-setup
want=$( { echo "$extra"; cat pyproject.toml scripts/setup.sh; } | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
  python=${PYTHON:-}
  for candidate in python3.11 python3.12 python3.13 python3; do
    [ -n "$python" ] && break
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && python=$candidate
  done
  [ -n "$python" ] || { echo "error: Python 3.11, 3.12 or 3.13 with the venv module is needed (apt install python3-venv)" >&2; exit 2; }
  # An interrupted creation leaves a python without pip.
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    step "creating .venv with $("$python" --version)"
    # The signal's default action: Ctrl-C ends it without a traceback.
    "$python" -c 'import signal, venv; signal.signal(signal.SIGINT, signal.SIG_DFL); venv.main(["--clear", ".venv"])'
  fi
  step "installing torch 2.13.0 (the largest part: minutes)"
  install torch==2.13.0
  step "installing glm53ctl [$extra,dev], which builds the CPU kernels"
  install -e ".[$extra,dev]"
  echo "$want" > "$stamp"
fi
# exllamav3's sources, not installed: the contract tests compare them with what the adapter relies on.
[ -d .cache/exllamav3/exllamav3-1.5.1.dist-info ] || {
  step "fetching the sources of exllamav3 1.5.1 for the tests"
  install --no-deps --target .cache/exllamav3 exllamav3==1.5.1
}
.venv/bin/python -m glm53_kernels.build --if-stale
