#!/usr/bin/env bash
# Resolves pyproject.toml into deploy/locks/*.txt, with hashes for every platform and without index lines. What is locked
# already stays as it is unless pyproject.toml asks for something newer; delete a lock file to resolve it anew.
set -euo pipefail

cd "$(dirname "$0")/.."
if [ -n "${UV:-}" ]; then
  uv="$UV"
else
  tools="$(mktemp -d)"
  trap 'rm -rf "$tools"' EXIT
  "${PYTHON:-python3}" -m venv "$tools"
  "$tools/bin/pip" --quiet --disable-pip-version-check install uv
  uv="$tools/bin/uv"
fi

compile() { # name, then the extras
  local name="$1"
  shift
  "$uv" pip compile pyproject.toml "$@" --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --no-annotate -o "deploy/locks/$name.txt" >/dev/null
}

# the largest first: the smaller ones take its versions
compile dev --extra dev
compile pipeline --extra pipeline --extra lake --constraints deploy/locks/dev.txt
compile image --extra kafka --constraints deploy/locks/dev.txt
compile requirements --constraints deploy/locks/dev.txt

# the jars too, where there is a Maven to ask
if command -v mvn >/dev/null; then deploy/jars.sh --lock; fi
