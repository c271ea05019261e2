#!/usr/bin/env bash
# Renew docs/assets: KaTeX draws the formulas, iframe-worker lets the search run from a folder without a server.
# Both are committed, so that the site can be built and read without a network; run this only to change a version.
set -euo pipefail
katex="0.19.1"
worker="1.0.4"

assets="$(cd "$(dirname "$0")/.." && pwd)/docs/assets"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent "katex@$katex" "iframe-worker@$worker" >/dev/null
mkdir katex worker
tar xzf "katex-$katex.tgz" -C katex --strip-components=1
tar xzf "iframe-worker-$worker.tgz" -C worker --strip-components=1

rm -rf "$assets/katex" "$assets/iframe-worker"
mkdir -p "$assets/katex/fonts" "$assets/iframe-worker"
cp katex/LICENSE katex/dist/katex.min.js "$assets/katex/"
cp katex/dist/fonts/*.woff2 "$assets/katex/fonts/"
# every browser of this decade reads woff2: leave the two older formats out
sed -E 's/,url\([^)]*\.(woff|ttf)\) format\("(woff|truetype)"\)//g' katex/dist/katex.min.css >"$assets/katex/katex.min.css"
cp worker/LICENSE worker/shim/index.js "$assets/iframe-worker/"
