#!/bin/sh
# The same stages one after another, as a script: nothing is checked, skipped or resumed.
#
#     cd examples/dialogue && sh sequential.sh
set -eu
out=${1:-sequential}
mkdir -p "$out/first"
python dialogue_steps.py corpus "$out"
export PREPARED="$out/prepared"
python dialogue_steps.py first "$PREPARED" "$out/first"
START="$out/first/model.pt"
for STAGE in foundation therapeutic_expertise edge_case_stress voice_persona long_running_therapy; do
    export STAGE START
    hasten run dialogue_stages.py:Stage --out "$out/$STAGE"
    START="$out/$STAGE/model.pt"
done
unset STAGE
hasten run dialogue_stages.py:Prefer --out "$out/safety"
mkdir -p "$out/check"
python dialogue_steps.py measure "$out/safety/model.pt" "$PREPARED" "$out/check"
cat "$out/check/metrics.json"
