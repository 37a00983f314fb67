#!/usr/bin/env bash
# From a fresh checkout to a trained model: set-up, build, a small GPT on the C++ headers of this machine (at most three
# minutes on two cores). Ends with the validation loss before and after, generated text, and what to do next. Arguments
# go to `trainer run`: tools/quickstart.sh train.steps=200
set -euo pipefail
cd "$(dirname "$0")/.."
job=configs/quickstart.yaml
checkpoints=runs/quickstart
trainer=build/trainer

# As "5.5468", from what eval prints.
loss_of() { "$trainer" eval "$job" --checkpoint "$1" 2>/dev/null | sed -n 's/^validation loss: //p'; }

tools/setup.sh
echo "quickstart: building (some minutes the first time)" >&2
tools/build.sh --target trainer

echo "quickstart: writing the initial weights, to measure them first" >&2
"$trainer" run "$job" train.steps=0 checkpoint.dir="$checkpoints/initial" log.jsonl=null checkpoint.resume=none >/dev/null 2>&1
before=$(loss_of "$checkpoints/initial")

echo "quickstart: $trainer run $job" >&2
"$trainer" run "$job" "$@" >/dev/null
after=$(loss_of "$checkpoints")
rm -r "$checkpoints/initial"

cat <<END

A sample of what it writes, after "template <typename":

$("$trainer" sample "$job" --prompt 'template <typename' --tokens 300 --seed 1 | sed 's/^/    /')

validation loss: $before before training, $after after
checkpoint:      $(ls -d "$checkpoints"/step-* | tail -1)
log:             $checkpoints/log.jsonl

Next:
    $trainer plan $job     # what a step does and what it needs
    $trainer sample $job   # more text; --help has the options
    $trainer init my.yaml --data my.txt      # a job of your own, then: $trainer run my.yaml
    tools/test.sh                                  # all the tests
END
