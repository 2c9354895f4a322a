#!/usr/bin/env python3
"""`gateway` under spark-submit. The cluster is spark-submit's to choose, so give `--master ""` to the job.

    spark-submit --master MASTER deploy/spark/submit.py pipeline archive --master "" --path ./data --to ./archive

Every executor needs `gateway[pipeline]` (PYSPARK_PYTHON names its interpreter) and both directories under these paths. A
live store can only be read on the machine that serves it: SQLite's write-ahead log is shared memory between processes.
"""

from __future__ import annotations

import sys

from gateway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
