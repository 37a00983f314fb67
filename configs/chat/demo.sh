#!/usr/bin/env bash
# From the manual pages of this machine to a small model that one can talk to, offline: a tokenizer, a base model, chats,
# tuning with and without an adapter, answers counted, a conversation, and export. Everything goes to runs/chat.
#
#   configs/chat/demo.sh              # a quarter of an hour on two cores
#   STEPS=10 configs/chat/demo.sh     # a tenth of the steps: to see that it runs
#
# STEPS is in percent of the steps of the jobs. Needs a built trainer, man-db's pages, awk and zcat.
set -euo pipefail
cd "$(dirname "$0")/../.."
trainer=${TRAINER:-build/trainer}
out=runs/chat
percent=${STEPS:-100}
started=$SECONDS

say() { printf '\n== %s (%d min %02d s)\n' "$*" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) >&2; }

# steps JOB: what the job's steps are under STEPS.
steps() {
  local all
  all=$(sed -n 's/^  steps: //p' "$1")
  echo $((all * percent / 100 > 2 ? all * percent / 100 : 2))
}

# Pages as plain text: macros and fonts are left out, words stay. One JSON object a page.
pages() {
  find /usr/share/man/man1 /usr/share/man/man7 /usr/share/man/man8 -name '*.gz' ! -name 'gcloud*' -type f | sort |
    LC_ALL=C awk '
      function plain(s) {
        gsub(/\\f[A-Z]|\\f\([A-Z][A-Z]|\\f\[[A-Z]*\]|\\s[-+]?[0-9]|\\[&,\/|^]/, "", s)
        gsub(/\\\(aq|\\\(cq/, "\047", s); gsub(/\\-|\\\(en|\\\(em|\\\(mi|\\\(hy/, "-", s)
        gsub(/\\e|\\\(rs/, "\\", s); gsub(/\\\(lq|\\\(rq|\\\(dq/, "\"", s); gsub(/\\ |\\~|\\0/, " ", s)
        gsub(/[\200-\377]/, "", s)
        return s
      }
      function add(line) {
        if (line ~ /^[.\047]\\"/ || line ~ /\\\{\\?$/ || line ~ /^[.\047] *(\\}|de|ds|nr|if|ie|el|tr|nh|ad|hy|TH|so|fi|nf|in|ti|sp|ne|ta|EX|EE|RS|RE|PD|mso|br|rm|ft)/) return
        if (sub(/^\.S[HS] */, "", line)) { gsub(/"/, "", line); text = text "\n\n" plain(line) "\n"; return }
        if (sub(/^\.(PP|LP|P|TP|IP|HP|TQ) */, "", line)) { text = text "\n" plain(line); return }
        if (sub(/^\.(BR|IR|RB|RI|BI|IB|SM|SB|B|I) /, "", line)) { gsub(/"/, "", line); text = text plain(line) " "; return }
        if (line !~ /^[.\047]/) text = text plain(line) " "
      }
      {
        text = ""; command = "zcat \047" $0 "\047"
        while ((command | getline line) > 0) add(line)
        close(command)
        gsub(/[ \t]+/, " ", text); gsub(/\n +/, "\n", text); gsub(/\n\n\n+/, "\n\n", text); sub(/^[ \n]+/, "", text)
        if (length(text) < 200 || text ~ /[^\n -~]/) next
        gsub(/\\/, "", text); gsub(/"/, "\\\"", text); gsub(/\n/, "\\n", text)
        print "{\"text\": \"" text "\"}"
      }'
}

# Chats: sums of numbers below a hundred, and what the first line of a page says that a command does. Every tenth sum is
# held out, so that it can only be answered by adding. awk takes its random numbers from a fixed seed.
sums() {
  awk -v held="$1" 'BEGIN {
    srand(7)
    for (i = 0; i < 9000; ++i) {
      a = int(rand() * 100); b = int(rand() * 100); form = int(rand() * 3)
      if (((a * 100 + b) % 10 == 3) != held) continue
      question = form == 0 ? "What is " a " + " b "?" : form == 1 ? "Add " a " and " b "." : a " plus " b "?"
      printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"%d\"}]}\n", question, a + b
    }
  }'
}
commands() {
  sed -n 's/^{"text": "NAME\\n\([a-z0-9][a-z0-9_.-]*\) - \([A-Za-z][^\\"]*[A-Za-z.)]\) *\\n.*/\1\t\2/p' "$out/pages.jsonl" |
    awk -F '\t' 'length($2) < 80 && !seen[$1]++ {
      printf "{\"messages\": [{\"role\": \"user\", \"content\": \"What does %s do?\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}\n", $1, $2
    }'
}

# answers MODEL FILE: how many of the file's first questions the model answers word for word.
answers() {
  local questions=60
  head -n $questions "$2" | sed 's/.*"user", "content": "\([^"]*\)".*/\1/' > "$out/questions.txt"
  head -n $questions "$2" | sed 's/.*"assistant", "content": "\([^"]*\)".*/\1/' > "$out/right.txt"
  sed 's/^/\/new\n/' "$out/questions.txt" | "$trainer" chat "$1" --temperature 0 --max-tokens 40 --context 256 --json 2> "$out/chat.err" |
    sed 's/.*"content":"\([^"]*\)".*/\1/' > "$out/answers.txt"
  paste -d '\t' "$out/answers.txt" "$out/right.txt" | awk -F '\t' '$1 == $2 { ++right } END { printf "%d of %d", right, NR }'
}

mkdir -p "$out"
say "text of the manual pages"
pages > "$out/pages.jsonl"
wc -lc "$out/pages.jsonl" >&2

say "tokenizer"
sed 's/^{"text": "//; s/"}$//; s/\\n/\n/g; s/\\"/"/g; s/\\\\/\\/g' "$out/pages.jsonl" > "$out/pages.txt"
"$trainer" tokenizer train --vocab 4096 --pattern qwen2 --special-token '<|endoftext|>' --special-token '<|im_start|>' \
  --special-token '<|im_end|>' "$out/pages.txt" -o "$out/model"
cp configs/chat/config.json configs/templates/chatml.jinja "$out/model/"
mv "$out/model/chatml.jinja" "$out/model/chat_template.jinja"

say "base model"
rm -rf "$out/base" "$out/tuned" "$out/lora"
"$trainer" run configs/chat/base.yaml train.steps="$(steps configs/chat/base.yaml)"
rm -rf "$out/base-folder"
"$trainer" export "$out/base" "$out/base-folder"
"$trainer" sample "$out/base-folder" --prompt 'The command' --tokens 60 --seed 1

say "chats"
{ sums 0; commands; } | awk 'BEGIN { srand(5) } { print rand() "\t" $0 }' | sort -n | cut -f 2- > "$out/chats.jsonl"
sums 1 > "$out/held-out.jsonl"
commands | awk 'NR <= 60' > "$out/commands.jsonl"
wc -l "$out/chats.jsonl" "$out/held-out.jsonl" >&2
"$trainer" data configs/chat/chat.yaml --rows 1 | awk 'NR <= 20 { print substr($0, 1, 200) }'

say "tuning of all weights"
"$trainer" run configs/chat/chat.yaml train.steps="$(steps configs/chat/chat.yaml)"

say "tuning of an adapter"
"$trainer" run configs/chat/lora.yaml train.steps="$(steps configs/chat/lora.yaml)"

say "export"
rm -rf "$out/tuned-folder" "$out/merged" "$out/tuned.gguf"
"$trainer" export "$out/tuned" "$out/tuned-folder"
"$trainer" export "$out/lora" "$out/merged" --merge
"$trainer" export "$out/tuned" "$out/tuned.gguf" --format gguf --dtype q8_0
ls -l "$out/tuned-folder/model.safetensors" "$out/merged/model.safetensors" "$out/tuned.gguf"

say "answers, word for word"
for model in tuned-folder merged; do
  echo "$model: held-out sums $(answers "$out/$model" "$out/held-out.jsonl"), commands seen in training $(answers "$out/$model" "$out/commands.jsonl")"
done

say "a conversation"
printf '%s\n' 'What is 21 + 34?' 'Add 7 and 8.' 'What does ls do?' 'What does grep do?' | tee "$out/questions.txt" | sed 's/^/> /'
sed 's/^/\/new\n/' "$out/questions.txt" | "$trainer" chat "$out/tuned-folder" --temperature 0 --max-tokens 40 --context 256
say "done"
