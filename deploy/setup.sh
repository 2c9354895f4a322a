#!/usr/bin/env bash
# Makes .venv and installs what is locked: `deploy/setup.sh requirements` for what serving needs, `dev` for everything.
# A second call is quick: a stamp remembers what was installed.
set -euo pipefail

cd "$(dirname "$0")/.."
source deploy/debian.sh
lock="${1:-dev}"
case "$lock" in
  requirements | pipeline | dev) ;;
  *) echo "setup: no lock named '$lock'" >&2; exit 2 ;;
esac

venv=.venv
fingerprint="$(cat pyproject.toml deploy/locks/"$lock".txt | cksum)"

current() { [ -f "$venv/.installed-$1" ] && [ "$(cat "$venv/.installed-$1")" = "$2" ]; }

if [ -x "$venv/bin/python" ]; then
  if current "$lock" "$fingerprint"; then exit 0; fi
  # the larger lock holds all of the smaller ones
  if current dev "$(cat pyproject.toml deploy/locks/dev.txt | cksum)"; then exit 0; fi
fi

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { suits "$1" && "$1" -c 'import ensurepip, sqlite3, ssl, venv' >/dev/null 2>&1; }

find_python() { # 3.11 first: it is the version the locks are resolved for
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3 /usr/bin/python3.11 /usr/bin/python3 python3.12 python3.13 python3.14 python; do
    if command -v "$candidate" >/dev/null 2>&1 && "$1" "$candidate"; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

if ! { [ -x "$venv/bin/python" ] && suits "$venv/bin/python"; }; then
  if ! python="$(find_python makes_venvs)"; then
    debian_install python3 python3-venv ca-certificates || true
    if ! python="$(find_python makes_venvs)"; then
      if python="$(find_python suits)"; then
        echo "setup: $python lacks the venv module (on Debian: apt-get install python3-venv)" >&2
      else
        echo "setup: no Python 3.11 or newer found; set PYTHON to one" >&2
      fi
      exit 1
    fi
  fi
  echo "setup: making $venv with $python" >&2
  "$python" -m venv --clear "$venv"
fi

py="$venv/bin/python"
"$py" -m pip --version >/dev/null 2>&1 || "$py" -m ensurepip >/dev/null
pip() { "$py" -m pip --disable-pip-version-check --no-input "$@"; }

echo "setup: installing deploy/locks/$lock.txt" >&2
# setuptools comes with the first lock, so that nothing has to be built with tools that are not locked
pip install --quiet --require-hashes --no-deps -r deploy/locks/requirements.txt
if [ "$lock" != requirements ]; then
  pip install --quiet --require-hashes --no-deps --no-build-isolation -r deploy/locks/"$lock".txt
fi
pip install --quiet --no-deps --no-build-isolation --editable .
if [ "$lock" = dev ]; then pip check >/dev/null || { pip check >&2; exit 1; }; fi
echo "$fingerprint" >"$venv/.installed-$lock"
