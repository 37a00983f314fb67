#!/usr/bin/env bash
# The scripts of configs/cluster/, with stand-ins for ssh, mpirun, srun and the command: what they start, with what, and how they end.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=$PWD/configs/cluster
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
expect() { # what, got, wanted
  if [[ $2 != "$3" ]]; then
    printf '%s:\n  got    %s\n  wanted %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}

for script in "$cluster"/*.sh "$cluster/slurm.sbatch"; do bash -n "$script"; done
if command -v shellcheck >/dev/null; then
  shellcheck "$cluster"/*.sh "$cluster/slurm.sbatch" "$0" || failures=$((failures + 1))
else
  echo "skipped: no shellcheck here, so scripts are only parsed"
fi

mkdir "$work/bin"
# A host is a process here; what it runs goes through a shell, as ssh does it.
cat >"$work/bin/ssh" <<'EOT'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2 ;; *) shift ;; esac; done
host=$1
shift
export HOST_NAME="$host"
exec sh -c "$*"
EOT
# What it is told, and how it ends, by host. It traps SIGTERM as a run does.
cat >"$work/bin/trainer" <<'EOT'
#!/bin/sh
out=$WORK/${HOST_NAME:-here}
{
  echo "$NNODES/$NODE_RANK $MASTER_ADDR:$MASTER_PORT"
  for word; do echo "[$word]"; done
} >"$out.told"
echo "$TRAINER_TOKEN" >"$out.token"
echo "a line of $HOST_NAME"
if [ -f "$out.code" ]; then sleep "$(cat "$out.delay")"; exit "$(cat "$out.code")"; fi
trap 'echo saved >"$out.saved"; exit 143' TERM
if [ -f "$WORK/wait" ]; then while :; do sleep 0.05; done; fi
exit 0
EOT
chmod +x "$work/bin/"*
export PATH="$work/bin:$PATH" WORK=$work

# ---- ssh ----
code=0
out=$("$cluster/ssh.sh" user@a,b,c 'my job.yaml' "name=it's here" 'train={steps: 3}' 2>&1) || code=$?
expect "exit code of ssh.sh" "$code" 0
for node in 0 1 2; do
  host=$(cut -d' ' -f$((node + 1)) <<<'user@a b c')
  expect "what $host is told" "$(cat "$work/$host.told")" "3/$node a:29500
[run]
[my job.yaml]
[cluster.nodes=3]
[name=it's here]
[train={steps: 3}]"
  expect "lines of $host" "$(grep -c "^$host: a line of $host\$" <<<"$out")" 1
done
expect "one token for all" "$(cat "$work/"*.token | sort -u | wc -l)" 1
expect "a token of 24 bytes" "$(tr -d '\n' <"$work/b.token" | wc -c)" 48

echo 75 >"$work/b.code" && echo 0.3 >"$work/b.delay"
echo 65 >"$work/c.code" && echo 0.1 >"$work/c.delay"
code=0
"$cluster/ssh.sh" user@a,b,c job.yaml >/dev/null 2>&1 || code=$?
expect "the first failure's exit code" "$code" 65
rm "$work/"*.code "$work/"*.delay

touch "$work/wait"
rm -f "$work/"*.told
"$cluster/ssh.sh" a,b job.yaml >/dev/null 2>&1 &
script=$!
for _ in $(seq 500); do
  if [[ -s $work/a.token && -s $work/b.token && -s $work/a.told && -s $work/b.told ]]; then break; fi
  sleep 0.02
done
sleep 0.2
kill -TERM "$script"
code=0
wait "$script" || code=$?
expect "exit code after SIGTERM" "$code" 143
expect "both hosts saved" "$(cat "$work/a.saved" "$work/b.saved" | tr '\n' ' ')" "saved saved "
rm "$work/wait"

# ---- mpirun ----
cat >"$work/bin/mpirun" <<'EOT'
#!/bin/sh
{
  echo "$MASTER_ADDR:$MASTER_PORT ${#TRAINER_TOKEN}"
  echo "$*"
} >"$WORK/mpirun.told"
EOT
chmod +x "$work/bin/mpirun"
MPIRUN='mpirun --mca btl self' "$cluster/open_mpi.sh" n0:4,n1:4 job.yaml seed=3
expect "mpirun" "$(cat "$work/mpirun.told")" "n0:29500 48
--mca btl self --host n0:4,n1:4 -np 8 --map-by slot --bind-to none -x MASTER_ADDR -x MASTER_PORT -x TRAINER_TOKEN trainer run job.yaml cluster.nodes=2 cluster.devices_per_node=4 seed=3"
code=0
"$cluster/open_mpi.sh" n0:4,n1:2 job.yaml 2>/dev/null || code=$?
expect "hosts with unequal GPUs" "$code" 64
# As mpirun passes SIGUSR1 on and waits for its ranks.
cat >"$work/bin/mpirun" <<'EOT'
#!/bin/bash
trap 'sleep 0.3; echo saved >>"$WORK/mpirun.signals"; exit 143' USR1
trap 'echo killed >>"$WORK/mpirun.signals"; exit 1' INT TERM HUP
echo up >"$WORK/mpirun.up"
while :; do sleep 0.05; done
EOT
for signal in TERM INT HUP USR1; do
  rm -f "$work/mpirun.up" "$work/mpirun.signals"
  # A job in the background would ignore SIGINT for good; one that env starts does not.
  env --default-signal=INT "$cluster/open_mpi.sh" n0:4 job.yaml &
  script=$!
  for ((turn = 0; turn < 200; turn++)); do
    [[ ! -e $work/mpirun.up ]] || break
    sleep 0.05
  done
  kill "-$signal" "$script"
  code=0
  wait "$script" || code=$?
  expect "open_mpi.sh after SIG$signal" "$code $(cat "$work/mpirun.signals")" "143 saved"
done

# ---- Slurm ----
cat >"$work/bin/srun" <<'EOT'
#!/bin/sh
{
  echo "$MASTER_ADDR:$MASTER_PORT ${#TRAINER_TOKEN}"
  echo "$*"
} >"$WORK/srun.told"
exit "${SRUN_CODE:-0}"
EOT
cat >"$work/bin/scontrol" <<'EOT'
#!/bin/sh
if [ "$1" = requeue ]; then echo "$2" >"$WORK/requeued"; else printf 'n3\nn4\n'; fi
EOT
chmod +x "$work/bin/"*
export SLURM_JOB_NODELIST='n[3-4]' SLURM_JOB_ID=1234567 SLURM_JOB_NUM_NODES=2 SLURM_NTASKS_PER_NODE=8
bash "$cluster/slurm.sbatch" job.yaml seed=3
expect "srun" "$(cat "$work/srun.told")" "n3:24567 48
--kill-on-bad-exit=1 --distribution=block --cpu-bind=none trainer run job.yaml cluster.nodes=2 cluster.devices_per_node=8 seed=3"
code=0
TRAINER_REQUEUE=1 SRUN_CODE=143 bash "$cluster/slurm.sbatch" job.yaml || code=$?
expect "exit code of a job that was stopped" "$code" 143
expect "requeued" "$(cat "$work/requeued")" 1234567

# ---- systemd ----
if command -v systemd-analyze >/dev/null; then
  sed 's|/usr/local/bin/trainer|/bin/true|' "$cluster/trainer@.service" >"$work/trainer@.service"
  systemd-analyze verify "$work/trainer@0.service" 2>&1 | grep -i 'trainer@' && failures=$((failures + 1))
else
  echo "skipped: no systemd here, so the unit is not verified"
fi

echo "$failures failures"
exit "$((failures > 0))"
