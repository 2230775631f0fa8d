#!/usr/bin/env bash
# Makes docs/images/live.png and docs/images/live-workers.png: the page of running jobs, as a browser shows it. From the root: bash docs/images/live.sh
#
# Needs Chromium (Debian's chromium, or set CHROMIUM). The jobs are real: sections of packages, learnt against parameter servers, and digits by three
# workers, of which one is stopped for a moment, so that the others wait for it. PROFILE=debug takes less time to build.
set -euo pipefail
cd "$(dirname "$0")/../.."
chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[ -n "$chromium" ] || { echo "live.sh: needs Chromium: apt-get install chromium, or CHROMIUM=…" >&2; exit 1; }
target=${CARGO_TARGET_DIR:-target}/release
profile=(--release)
[ "${PROFILE:-release}" = release ] || { target=${CARGO_TARGET_DIR:-target}/debug; profile=(); }
cargo build "${profile[@]}" --locked --quiet --package distribute-cli
cargo build "${profile[@]}" --locked --quiet --package distribute-examples --example packages --example digits

folder=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill "$job" 2>/dev/null || true; rm -rf "$folder"' EXIT

# begin NAME ARGUMENTS…: starts a job by `distribute launch`, waits until it has a page, and says where in $address.
begin() {
  local log=$folder/$1.log
  : >"$log"
  shift
  # Ended by its own process number, with all of its tasks.
  "$target/distribute" launch "$@" >"$log" 2>&1 &
  job=$!
  address=
  local try
  for try in $(seq 240); do
    address=$(grep -o 'watch it at http://[0-9.:]*' "$log" | head -n 1 | grep -o 'http.*' || true)
    [ -z "$address" ] || break
    kill -0 "$job" || { cat "$log" >&2; exit 1; }
    sleep 0.25
  done
  [ -n "$address" ] || { echo "live.sh: no page after a minute" >&2; cat "$log" >&2; exit 1; }
}

# field NAME: a number of the page's report.
field() { "$target/distribute" status "${address#http://}" --json | grep -o "\"$1\":[0-9.]*" | head -n 1 | cut -d: -f2; }

# until_steps COUNT SECONDS: until so many steps are made, and it has been watched for so long.
until_steps() {
  local try
  for try in $(seq 600); do
    awk -v a="$(field steps)" -v b="$(field seconds)" -v c="$1" -v d="$2" 'BEGIN { exit !(a >= c && b >= d) }' && return
    kill -0 "$job" 2>/dev/null || break
    sleep 0.25
  done
  echo "live.sh: too few steps" >&2
  exit 1
}

# browse OPTIONS…: what a browser makes of the page, dark.
browse() {
  "$chromium" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$folder/browser" --force-device-scale-factor=1.5 \
    --blink-settings=preferredColorScheme=0 --virtual-time-budget=1500 "$@" "$address/" 2>"$folder/browser.log" || { cat "$folder/browser.log" >&2; exit 1; }
}

# whole: whether the page shows the job: its script has run to the end.
whole() { browse --dump-dom | grep -q 'watched for [0-9]' || { echo "live.sh: the page shows no job" >&2; exit 1; }; }

# shoot FILE HEIGHT: the page as it is.
shoot() {
  browse --window-size="1240,$2" --screenshot="$folder/page.png"
  local size
  size=$(stat -c %s "$folder/page.png")
  [ "$size" -lt 300000 ] || { echo "live.sh: $1 would have $size bytes" >&2; exit 1; }
  cp "$folder/page.png" "$1"
  echo "$1: $size bytes"
}

end() {
  kill "$job" 2>/dev/null || true
  wait "$job" 2>/dev/null || true
  job=
}

begin servers --chief --workers 2 --ps 2 -- "$target/examples/packages" --strategy ps --epochs 1000 --live 0
until_steps 400 25
shoot docs/images/live.png 950
whole
end

begin workers --workers 3 -- "$target/examples/digits" --strategy multi-worker --replicas 2 --epochs 10000 --live 0
until_steps 150 20
# The last worker is a child of the launcher.
worker=$(pgrep -P "$job" -f -- '--strategy multi-worker' | tail -n 1)
kill -STOP "$worker"
sleep 1.2
shoot docs/images/live-workers.png 1110
kill -CONT "$worker"
whole
end
