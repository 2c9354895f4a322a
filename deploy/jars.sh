#!/usr/bin/env bash
# `deploy/jars.sh kafka`: the jars that deploy/jars/kafka.xml asks for, by coordinates, come by Maven into .deps/jars/kafka, and
# each must be what deploy/locks/kafka.sha256 says. Only tests and the pipeline use them: where there is no Maven and none can
# be had, this says so and ends well. `deploy/jars.sh --lock` writes the locks of all of them.
set -euo pipefail

cd "$(dirname "$0")/.."
source deploy/debian.sh
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

resolve() { # name, directory
  mvn -q -B -ntp -Dstyle.color=never -f "deploy/jars/$1.xml" "$plugin:copy-dependencies" -DincludeScope=runtime -DoutputDirectory="$2" >&2
}
checksums() { (cd "$1" && LC_ALL=C sha256sum ./*.jar | sed 's,\./,,'); }

if [ "${1:-}" = --lock ]; then
  scratch="$(mktemp -d)"
  trap 'rm -rf "$scratch"' EXIT
  for asked in deploy/jars/*.xml; do
    name="$(basename "$asked" .xml)"
    resolve "$name" "$scratch/$name"
    checksums "$scratch/$name" >"deploy/locks/$name.sha256"
  done
  exit 0
fi

for name in "$@"; do
  lock="deploy/locks/$name.sha256" jars=".deps/jars/$name"
  if cmp -s "$lock" "$jars/.lock"; then continue; fi
  if ! command -v mvn >/dev/null 2>&1 && ! debian_install maven; then
    echo "setup: no Maven here (on Debian: apt-get install maven): what needs the jars of $name is skipped" >&2
    continue
  fi
  echo "setup: fetching the jars of $name" >&2
  fresh="$PWD/$jars.$$"
  rm -rf "$fresh"
  mkdir -p "$fresh"
  if ! resolve "$name" "$fresh"; then
    echo "setup: Maven cannot fetch the jars of $name: what needs them is skipped" >&2
    rm -rf "$fresh"
    continue
  fi
  if ! checksums "$fresh" | diff "$lock" - >&2; then
    echo "setup: the jars of $name are not those of $lock" >&2
    rm -rf "$fresh"
    exit 1
  fi
  cp "$lock" "$fresh/.lock"
  rm -rf "$jars"
  mv "$fresh" "$jars"
done
