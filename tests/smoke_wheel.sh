#!/usr/bin/env bash
# Install a built wheel with its default dependencies only, outside the checkout, and use it.
set -euo pipefail
wheel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
uv venv --quiet --python 3.12 "$folder/venv"
uv pip install --quiet --python "$folder/venv/bin/python" "$wheel"
cd "$folder"
export HOME="$folder"
venv/bin/burnish --version
venv/bin/burnish list
venv/bin/burnish doctor --rendering False || true
venv/bin/burnish train ppo --env point_mass --policy mlp --out run --numbers.iterations 3
venv/bin/burnish eval run --episodes 20 --videos 0
test -s run/evaluations/*/evaluation.json
echo "the wheel works"
