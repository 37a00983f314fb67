#!/usr/bin/env bash
# Open MPI: mpirun starts one process for each GPU on every host; the ranks themselves speak NCCL.
#   configs/cluster/open_mpi.sh node0:8,node1:8 job.yaml [key=value ...]
# Hosts are as mpirun's --host takes them, each with its GPUs, all equally many. TRAINER names the command, where it is not in PATH everywhere;
# MPIRUN mpirun with options of your own; MASTER_PORT a port that is free on the first host (29500).
# Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 to this script end the step, save a checkpoint and exit 143.
set -euo pipefail
hosts=${1:?usage: open_mpi.sh HOST:GPUS[,HOST:GPUS ...] JOB [key=value ...]}
job=${2:?usage: open_mpi.sh HOST:GPUS[,HOST:GPUS ...] JOB [key=value ...]}
shift 2

IFS=, read -ra nodes <<<"$hosts"
first=${nodes[0]}
gpus=${first##*:}
for node in "${nodes[@]}"; do
  if [[ $node != *:* || ${node##*:} != "$gpus" ]]; then
    echo "open_mpi.sh: $node: every host is given as HOST:GPUS, with equally many" >&2
    exit 64
  fi
done

export MASTER_ADDR=${first%:*} MASTER_PORT=${MASTER_PORT:-29500}
TRAINER_TOKEN=${TRAINER_TOKEN:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')}
export TRAINER_TOKEN
read -ra mpirun <<<"${MPIRUN:-mpirun}"
# A second after Ctrl-C, SIGTERM or SIGHUP mpirun kills its ranks, saved or not. SIGUSR1 it passes on, so every signal becomes that one; in a
# session of its own mpirun does not get those that a terminal sends.
stopped=0
trap 'stopped=1; kill -USR1 "$pid" 2>/dev/null || true' INT TERM HUP USR1
# Ranks go host by host, as the plan has them; processes that wait for a GPU are bound to no core.
setsid "${mpirun[@]}" --host "$hosts" -np $((${#nodes[@]} * gpus)) --map-by slot --bind-to none \
  -x MASTER_ADDR -x MASTER_PORT -x TRAINER_TOKEN \
  "${TRAINER:-trainer}" run "$job" "cluster.nodes=${#nodes[@]}" "cluster.devices_per_node=$gpus" "$@" &
pid=$!
while :; do
  stopped=0 code=0
  wait "$pid" || code=$?
  ((stopped)) || exit "$code" # else a signal ended the wait, not mpirun
done
