#!/usr/bin/env bash
# Install glm53ctl for this user, outside of a checkout: its own Python environment, one link in ~/.local/bin.
#
#   scripts/install.sh [--extra cuda|cpu|none] [--prefix DIR] [--dry-run] [SOURCE]
#   scripts/install.sh --uninstall
#
# SOURCE is a wheel, a checkout, or a requirement for pip; without one, this checkout. Without --extra, cuda
# where an NVIDIA driver answers, else cpu; none installs the command line alone (doctor, plan, models, emit).
# Nothing is done as root; models, settings and state are left alone by --uninstall.
set -euo pipefail

prefix=${XDG_DATA_HOME:-$HOME/.local/share}/glm53/venv
bin=$HOME/.local/bin
source=$(cd "$(dirname "$0")/.." && pwd)
extra='' dry='' uninstall=''

say() { printf '%s\n' "$*" >&2; }
run() {
  if [ -n "$dry" ]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

while [ $# -gt 0 ]; do
  case $1 in
    --extra) extra=${2:?--extra cuda, cpu or none}; shift ;;
    --prefix) prefix=${2:?--prefix DIR}; shift ;;
    --dry-run) dry=1 ;;
    --uninstall) uninstall=1 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) say "error: unknown option $1"; exit 2 ;;
    *) source=$1 ;;
  esac
  shift
done

if [ -n "$uninstall" ]; then
  # Also the environments that `glm53ctl upgrade` made beside it.
  run rm -rf "$prefix" "$prefix"-[0-9]*T[0-9]* "$prefix-previous"
  run rm -f "$bin/glm53ctl"
  exit 0
fi

if [ -z "$extra" ]; then
  extra=cpu
  if command -v nvidia-smi >/dev/null 2>&1 && timeout 10 nvidia-smi -L >/dev/null 2>&1; then extra=cuda,cpu; fi
fi

python=${PYTHON:-}
for candidate in python3.13 python3.12 python3.11 python3; do
  [ -n "$python" ] && break
  "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
    && python=$candidate
done
if [ -z "$python" ]; then
  say "error: Python 3.11, 3.12 or 3.13 with the venv module is needed (sudo apt install python3-venv)"
  exit 2
fi

# Extras belong behind the name: before versions and URLs.
requirement='^([A-Za-z0-9][A-Za-z0-9._-]*) *(\[([^]]*)\])? *([@=<>!~;(].*)?$'
what=$source
if [ "$extra" != none ]; then
  if [ -e "$source" ]; then
    what="${source}[$extra]"
  elif [[ $source == *://* && ${source%%://*} != *@* ]]; then
    what="glm53ctl[$extra] @ $source"
  elif [[ $source =~ $requirement ]]; then
    own=${BASH_REMATCH[3]}
    rest=${BASH_REMATCH[4]}
    [[ $rest != [@\;]* ]] || rest=" $rest"
    what="${BASH_REMATCH[1]}[${own:+$own,}$extra]$rest"
  else
    what="${source}[$extra]"
  fi
fi
say "installing $what into $prefix"
run "$python" -m venv "$prefix"
run "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$what"
run mkdir -p "$bin"
run ln -sfn "$prefix/bin/glm53ctl" "$bin/glm53ctl"
run "$bin/glm53ctl" version

case :$PATH: in
  *:"$bin":*) ;;
  *) say "note: $bin is not in PATH; add it: export PATH=\"$bin:\$PATH\"" ;;
esac
say "next: glm53ctl doctor · glm53ctl up · completion: glm53ctl --install-completion"
