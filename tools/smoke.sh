#!/usr/bin/env bash
# The command line from data to model in a temporary folder; shows that the pieces fit, not how well.
set -euo pipefail
dlnn=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/dlnn
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
started=$SECONDS

step() {
  echo "smoke: dlnn $*"
  "$dlnn" "$@" >out 2>err || {
    status=$?
    tail -n 20 err out >&2
    echo "smoke: failed with exit code $status: dlnn $*" >&2
    exit 1
  }
}

step data synth --trajectories 3 --duration 5 --out bag
step data info bag
step train --data bag --model dlnn --out model --time-budget 4
step evaluate model --data bag --json
grep -q '"r2_mean"' out
step info model --json
grep -q '"joints"' out
[ -s model/model.yaml ] && [ -s model/params.safetensors ] && [ -s model/report.html ]
echo "smoke: passed in $((SECONDS - started)) s"
