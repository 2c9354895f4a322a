"""What spark-submit runs: `gateway pipeline` on the session that it makes. All arguments are those of the command."""

from __future__ import annotations

import sys

from gateway.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:], "--master", ""]))
