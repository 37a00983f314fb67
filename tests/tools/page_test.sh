#!/usr/bin/env bash
# Opens pages of plans in a browser: at 1280 and 2560 pixels no script fails, the console stays empty, the figures are there, nothing is wider
# than the window, pointing and zooming work, a job's name stays text; and they print. Screenshots are kept for people to look at.
# usage: page_test.sh TRAINER FOLDER; without a browser it says that it is skipped.
set -euo pipefail
trainer=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd) configs=$(cd "$(dirname "$0")/../../configs" && pwd)
browser=
for name in "${TRAINER_BROWSER:-}" chromium-headless-shell chromium chromium-browser google-chrome; do
  [[ -n $name ]] && browser=$(command -v "$name") && break
done
if [[ -z $browser ]]; then
  echo "skipped: no Chromium here, so pages of plans were not opened"
  exit 0
fi
rm -rf "$out" && mkdir -p "$out"
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# open NAME WIDTH ARGUMENTS…: the browser on a page; complaints of the console go to NAME.WIDTH.log.
open() {
  local page=$1 width=$2
  shift 2
  timeout 150 "$browser" --headless --no-sandbox --disable-gpu --in-process-gpu --hide-scrollbars --force-device-scale-factor=1 --user-data-dir="$out/profile" \
    --enable-logging=stderr --v=0 --window-size="$width,1600" "$@" "file://$page" 2>"$page.$width.log"
  if grep -q 'CONSOLE' "$page.$width.log"; then fail "$page at $width: $(grep -m3 CONSOLE "$page.$width.log")"; fi
}

# check NAME JOB [key=value…]: what page_test.js finds, at both widths; then pictures.
check() {
  local name=$1 status=0 width found
  shift
  "$trainer" plan "$@" --html "$out/$name.html" --json >"$out/$name.json" 2>"$out/$name.err" || status=$?
  if ((status != 0 && status != 78)); then fail "$name: trainer plan ended with $status: $(<"$out/$name.err")"; return; fi
  { cat "$out/$name.html"; echo '<script type="application/json" id="expected">'; sed 's/</\\u003c/g' "$out/$name.json"; echo '</script><script>'; cat "$here/page_test.js"; echo '</script>'; } >"$out/$name.tested.html"
  for width in 1280 2560; do
    open "$out/$name.tested.html" $width --dump-dom >"$out/$name.dom" || fail "$name at $width: the browser ended with $?"
    found=$(grep -o -m1 '<html[^>]*>' "$out/$name.dom") || true
    [[ $found == *'data-failed=""'* ]] || fail "$name at $width: $found"
    open "$out/$name.html" $width --screenshot="$out/$name.$width.png" --window-size=$width,2600
    [[ $(stat -c %s "$out/$name.$width.png" 2>/dev/null || echo 0) -gt 40000 ]] || fail "$name at $width: an empty picture"
  done
}

check single "$configs/nanogpt-char.yaml"
check fsdp "$configs/gpt2-fsdp4.yaml"
check 3d "$configs/llama-3d8.yaml"
check auto "$configs/llama-3d8.yaml" strategy=auto cluster.device=cuda cluster.backend=nccl cluster.hardware=h100-sxm
check "does not fit" "$configs/gpt2-124m.yaml" cluster.memory_limit=2300MiB 'name="</script><script>document.title=1</script><b>&amp;"'
open "$out/3d.html" 1280 --no-pdf-header-footer --print-to-pdf="$out/3d.pdf"
[[ $(head -c 5 "$out/3d.pdf") == %PDF- ]] || fail "no print"
rm -rf "$out/profile"
((failed == 0)) && echo "pages of five plans opened in $("$browser" --version 2>/dev/null | head -1)"
exit $failed
