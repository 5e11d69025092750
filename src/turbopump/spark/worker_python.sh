#!/bin/sh
# The Python of Spark's workers, $PYSPARK_PYTHON, with nothing on its PYTHONPATH but what the user
# has put there. Spark puts three things before that (apache/spark PythonUtils.sparkPythonPath):
# zips of PySpark and py4j without compiled modules, which every worker would compile again, and its
# core jar. session.py sees to it that this Python has both.
path=$PYTHONPATH:
while :; do
  case $path in
    "$SPARK_HOME"/python/lib/*.zip:* | "$SPARK_HOME"/jars/*.jar:*) path=${path#*:} ;;
    *) break ;;
  esac
done
export PYTHONPATH="${path%:}"
exec "$PYSPARK_PYTHON" "$@"
