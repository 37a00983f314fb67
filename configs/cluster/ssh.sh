#!/usr/bin/env bash
# ssh and nothing else: the command is started once on each host, and there starts a process for each GPU by itself.
#   configs/cluster/ssh.sh node0,node1 job.yaml [key=value ...]
# The job lies at the same path on all hosts (a shared folder). TRAINER names the command, where it is not in PATH everywhere; SSH is ssh with
# options of your own; MASTER_PORT a port that is free on the first host (29500).
#
# What the hosts print comes here, each line with its host in front. The exit code is that of the first host that failed; the others notice by
# themselves and end. Ctrl-C or SIGTERM here ends all of them as SIGTERM does: after the step, with a checkpoint.
set -euo pipefail
hosts=${1:?usage: ssh.sh HOST[,HOST ...] JOB [key=value ...]}
job=${2:?usage: ssh.sh HOST[,HOST ...] JOB [key=value ...]}
shift 2

IFS=, read -ra nodes <<<"$hosts"
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=15}"
port=${MASTER_PORT:-29500}
# The token goes over stdin: a command line is read by anyone on the host.
token=${TRAINER_TOKEN:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')}
printf -v arguments '%q ' "${TRAINER:-trainer}" run "$job" "cluster.nodes=${#nodes[@]}" "$@"
printf -v folder '%q' "$PWD"

# On a host: takes the token, runs the command, and sends it SIGTERM once stdin ends. That is when this script ends, however it does.
# shellcheck disable=SC2016  # it is the host that expands
remote='read -r TRAINER_TOKEN; export TRAINER_TOKEN; exec 3<&0 </dev/null; '"$arguments"'3<&- & pid=$!
{ cat <&3 >/dev/null; kill -TERM $pid; } 2>/dev/null & watch=$!
exec 3<&-; wait $pid; code=$?; kill $watch 2>/dev/null; exit $code'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pids=()
inputs=()
# shellcheck disable=SC2317  # called by the trap
stop() {
  for input in "${inputs[@]}"; do exec {input}>&-; done
  inputs=()
}
for node in "${!nodes[@]}"; do
  mkfifo "$work/$node"
  variables="NNODES=${#nodes[@]} NODE_RANK=$node MASTER_ADDR=${nodes[0]#*@} MASTER_PORT=$port"
  (
    trap '' INT # a terminal sends it to all; this script alone takes it
    for input in "${inputs[@]}"; do exec {input}>&-; done
    code=0
    "${ssh[@]}" "${nodes[node]}" "cd $folder && export $variables && exec sh -c '${remote//\'/\'\\\'\'}'" <"$work/$node" 2>&1 | sed -u "s|^|${nodes[node]}: |" || code=${PIPESTATUS[0]}
    echo "$code" >>"$work/codes"
  ) &
  pids+=($!)
  exec {input}>"$work/$node"
  inputs+=("$input")
  echo "$token" >&"$input"
done
trap stop INT TERM HUP

# A signal ends a wait, not what it waited for.
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || true; done
done
code=$(grep -v '^0$' "$work/codes" | head -n 1) || true
exit "${code:-0}"
