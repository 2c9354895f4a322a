#!/usr/bin/env bash
# Runs a job of the pipeline on a cluster:
#
#   MASTER=spark://spark.example:7077 deploy/spark/submit.sh archive --endpoint https://gateway.example:9600 --to /archive
#
# Every executor needs a Python with the packages of `gateway[pipeline]` at $PYSPARK_PYTHON (trio and aioquic may be missing
# there), and sees what --to, --path and --from name at the same place (a shared file system). With --endpoint nothing of the
# store has to be shared. What the executors do not have can be sent along by $SUBMIT_OPTIONS, further words for spark-submit:
#
#   the gateway itself:   python3 -m zipfile -c gateway.zip gateway; SUBMIT_OPTIONS="--py-files gateway.zip"
#   a whole environment:  SUBMIT_OPTIONS="--archives pipeline.tar.gz#env" PYSPARK_PYTHON=./env/bin/python
#
# $PYSPARK_DRIVER_PYTHON is the Python here, with all of `gateway[pipeline]`. Spark's own log is shown with SPARK_LOGS=1.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
export PYSPARK_DRIVER_PYTHON="${PYSPARK_DRIVER_PYTHON:-$(command -v python3)}"
export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$PYSPARK_DRIVER_PYTHON}"
read -ra options <<< "${SUBMIT_OPTIONS:-}"
[ -n "${SPARK_LOGS:-}" ] || options+=(--driver-java-options "-Dlog4j2.configurationFile=file:$here/log4j2.properties")
exec spark-submit \
  --master "${MASTER:-local[2]}" \
  --name "gateway ${1:?which job: archive, audit, merge, rollup, replay, compact, export, report}" \
  --conf spark.ui.showConsoleProgress=false \
  --conf spark.sql.session.timeZone=UTC \
  --conf spark.sql.execution.arrow.pyspark.enabled=true \
  --conf spark.sql.python.filterPushdown.enabled=true \
  --conf spark.executor.memory="${EXECUTOR_MEMORY:-2g}" \
  --conf spark.executorEnv.PYSPARK_PYTHON="$PYSPARK_PYTHON" \
  "${options[@]}" \
  "$here/job.py" "$@"
