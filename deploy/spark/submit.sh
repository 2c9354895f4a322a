#!/usr/bin/env bash
# Runs a job of the pipeline on a cluster:
#
#   MASTER=spark://spark.example:7077 deploy/spark/submit.sh archive --endpoint https://gateway.example:9600 --to /archive
#
# Every executor needs the same Python with `gateway[pipeline]` in it, at $PYSPARK_PYTHON, and sees what --to, --path and
# --from name at the same place (a shared file system). With --endpoint nothing of the store has to be shared.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$(command -v python3)}"
exec spark-submit \
  --master "${MASTER:-local[2]}" \
  --name "gateway ${1:?which job: archive, audit, merge, rollup, replay, compact, export}" \
  --conf spark.ui.showConsoleProgress=false \
  --conf spark.sql.session.timeZone=UTC \
  --conf spark.sql.execution.arrow.pyspark.enabled=true \
  --conf spark.sql.python.filterPushdown.enabled=true \
  --conf spark.executor.memory="${EXECUTOR_MEMORY:-2g}" \
  --conf spark.executorEnv.PYSPARK_PYTHON="$PYSPARK_PYTHON" \
  "$here/job.py" "$@"
