#!/usr/bin/env bash
# Chromium and its driver for the browser tests, from Debian's or Ubuntu's archive. Does nothing if they are there.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "no apt-get here: install chromium and chromedriver yourself; the browser tests are skipped without them" >&2
    exit 0
fi
run=""
[ "$(id -u)" -eq 0 ] || run="sudo"
$run apt-get update -qq
$run apt-get install -y -qq --no-install-recommends chromium chromium-driver
