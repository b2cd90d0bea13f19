#!/usr/bin/env bash
# Train the studies of this folder on one GPU for at most SECONDS, three lanes side by side, the most telling studies
# first. The same command goes on where it stopped.
#   CAMRI_DATA=FOLDER bash reproduce/studies/run.sh SECONDS RUNS
# FOLDER holds cifar10, gtsrb and tiny-imagenet-animals64; a run folder for each study appears in RUNS.
set -u
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
STUDIES=${STUDIES:-$ROOT/reproduce/studies}
PYTHON=${PYTHON:-python3}
END=$(($(date +%s) + $1))
mkdir -p "$2" && RUNS=$(cd "$2" && pwd)
export PYTHONPATH=$ROOT:$ROOT/reproduce/two-sided/methods${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}

said() { # NAME CODE BEGAN
  echo "$(date +%T) $1: exit code $2, $(($(date +%s) - $3)) s, $(tail -n 1 "$RUNS/$1.log")"
}

study() { # NAME FILE [OPTIONS]: resume or begin the run NAME, in the folder IN
  local name=$1 file=$2 left=$((END - $(date +%s))) began=$(date +%s)
  shift 2
  if [ "$left" -lt 30 ]; then echo "$(date +%T) $name: no time left"; return; fi
  (cd "${IN:-$ROOT}" && "$PYTHON" -m camri study run "$STUDIES/$file" --out "$RUNS/$name" --max-wall "${left}s" "$@") \
    >>"$RUNS/$name.log" 2>&1
  said "$name" $? "$began"
}

continue_stored() { # the run whose scores the repository has: its cross-entropy need not be trained again
  [ -e "$RUNS/columns-cifar10/outcomes.sqlite" ] && return
  mkdir -p "$RUNS/columns-cifar10"
  "$PYTHON" -c 'import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' \
    "$ROOT/reproduce/scores/columns-cifar10.sqlite.xz" >"$RUNS/columns-cifar10/outcomes.sqlite"
}

authors_cnn() {
  study winners winners.json --seeds 0-7
  IN=$CAMRI_DATA study columns-animals animals.toml
  continue_stored
  study columns-cifar10 cifar10.toml
  study winners winners.json
  study winners winners-controls.toml
  study winners winners-controls.toml --methods l2softmax --seeds 4-9
  study grids grids.toml
  study table1-cifar10 table1-cifar10.toml
  study small-cifar10-wide small-cifar10-wide.toml
  study small-cifar10-long small-cifar10-long.toml
  study columns-gtsrb gtsrb.toml
  study table1-gtsrb table1-gtsrb.toml
}

small_cnn() {
  study small-cifar10-members small-cifar10-members.toml
  study small-cifar10-wide small-cifar10-wide.toml --methods ce
  study small-cifar10-long small-cifar10-long.toml --methods ce
  study joint-small-cifar10 joint-small-cifar10.toml
  IN=$CAMRI_DATA study joint-small-animals joint-small-animals.toml
}

small_cnn_on_signs() {
  local left=$((END - $(date +%s))) began=$(date +%s)
  "$PYTHON" "$STUDIES/tune.py" "$STUDIES"/small-gtsrb-{tuned,camri}.toml --out "$RUNS" \
    --max-wall "$left" >>"$RUNS/small-gtsrb-tuned.log" 2>&1
  said small-gtsrb-tuned $? "$began"
}

{ authors_cnn & small_cnn & small_cnn_on_signs & wait; exit; }
