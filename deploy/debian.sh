# Sourced by the set-up scripts: what they may install from the distribution where something is missing.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
may_be_root() { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; }

debian_install() { # packages; false where there is no apt-get, or nobody who may call it
  command -v apt-get >/dev/null 2>&1 && may_be_root || return 1
  echo "setup: installing $* from the distribution" >&2
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get -qq update && as_root apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}
