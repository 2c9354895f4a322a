"""What went wrong in Spark, in a line that names the cause instead of two Java stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import InvalidRequest
from gateway.pipeline.spread import NO_SPACE, TaskFailed

_PYTHON = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w+): (.+)$", re.MULTILINE)
"""The last line of a Python traceback, which is somewhere in Spark's text."""
_OURS = re.compile(r"\bgateway\.spark\.([A-Z]\w+): (.+)")
"""What the data source in the JVM says, by the same names."""
_NO_FILES = re.compile(r'Class (org\.apache\.hadoop\.fs\.[\w.$]+) not found|No FileSystem for scheme "?(\w+)')
"""How Hadoop says that it lacks what an address begins with."""
_CLASS = re.compile(r"^\[[\w.]+\]\s*")
_CLASSED = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] (.+)")
"""How Spark says what happened, somewhere in what Java says."""
_STREAM = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[[^\]]*\] terminated with exception: ")
_QUERY = "\n=== Streaming Query ==="
"""Behind it Spark describes the query, in lines that look like an error of Python's: `Identifier: ...`."""
_CAUSED = re.compile(r"^Caused by: (?:\w+\.)*[\w$]+: (.+)$", re.MULTILINE)


@contextmanager
def reported() -> Iterator[None]:
    """Raises TaskFailed, or InvalidRequest for an expression that Spark does not understand."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise InvalidRequest(cause(str(error))) from error
    except (PySparkException, Py4JError) as error:
        raise TaskFailed(cause(str(error))) from error


def cause(text: str) -> str:
    """The cause that a text of Spark's is about; for people only."""
    if "No space left on device" in text:
        return NO_SPACE
    text = _STREAM.sub("", text.split(_QUERY, maxsplit=1)[0])
    lacks = _NO_FILES.search(text)
    if lacks:
        return (
            f"Spark has no jar that knows {lacks[1] or lacks[2] + '://'}: give it those of its Hadoop (for s3a:// hadoop-aws and "
            "what that needs) by --jars or GATEWAY_SPARK_JARS"
        )
    ours = _OURS.search(text)
    if ours:
        return f"{ours[1]}: {ours[2]}"
    found = [match for match in _PYTHON.finditer(text) if not match[1].startswith(("Py4J", "PySpark"))]
    if found:
        return f"{found[0][1]}: {found[0][2]}"
    first = text.strip().split("\n", maxsplit=1)[0]
    said = _CLASSED.findall(text)
    if said and not _CLASS.match(first):
        first = said[0].strip()
        deepest = _CAUSED.findall(text)
        if deepest and not _CLASS.match(deepest[-1]) and deepest[-1] not in first:
            first = f"{first.rstrip('.')}: {deepest[-1]}"
    return _CLASS.sub("", first)
