"""What a checkpoint must remember about a pipeline beyond what Spark puts into it: how the state of its steps is cut.

A key is found in the shard that its CRC and the number of shards say. With another number it would be looked for in
another shard, and be new: nothing would fail, and every result would be wrong. So the first start writes down the
steps, beside Spark's own files, and every other start must have the same.
"""

from __future__ import annotations

import json
from typing import Any, Final

from onceflow.digits import whole_number_of
from onceflow.errors import ConfigError
from onceflow.pipelines.pipeline import Pipeline

__all__ = ["STEPS_FILE", "check_steps", "last_micro_batch"]

STEPS_FILE: Final = "onceflow-steps.json"
COMMITS: Final = "commits"


def check_steps(spark: Any, checkpoint: str, pipeline: Pipeline) -> None:
    """Raises `ConfigError` if the checkpoint was begun with other steps. To be called before the query starts."""
    path = spark._jvm.org.apache.hadoop.fs.Path(checkpoint, STEPS_FILE)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    wanted = [{"by": each.by, "shards": each.shards} for each in pipeline.steps]
    found = _read(files, path)
    if found is None:
        _write(files, path, wanted)
    elif found != wanted:
        raise ConfigError(
            f"the checkpoint {checkpoint} was begun with the steps {_words(found)}, and the pipeline "
            f"{pipeline.name!r} has {_words(wanted)} now: the state could not be found again. Keep them as they were, "
            "or begin anew with another checkpoint, app id and topics"
        )


def last_micro_batch(spark: Any, checkpoint: str) -> int | None:
    """The newest that Spark knows to be done; None if none is."""
    folder = spark._jvm.org.apache.hadoop.fs.Path(checkpoint, COMMITS)
    files = folder.getFileSystem(spark._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return None
    names = [each.getPath().getName() for each in files.listStatus(folder)]
    return max((number for each in names if (number := whole_number_of(each)) is not None), default=None)


def _read(files: Any, path: Any) -> Any:
    """None if there is nothing: no query has begun here."""
    from py4j.protocol import Py4JJavaError

    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return json.loads(bytes(stream.readAllBytes()))
    except (ValueError, Py4JJavaError) as problem:
        if isinstance(problem, Py4JJavaError) and "ChecksumException" not in str(problem.java_exception):
            raise
        raise ConfigError(
            f"{path.toString()} cannot be read: it is damaged, and so may be the checkpoint around it. It says how the "
            "state is cut: put it back from a copy, or begin anew with another checkpoint, app id and topics"
        ) from None
    finally:
        stream.close()


def _write(files: Any, path: Any, steps: list[dict[str, Any]]) -> None:
    """Under another name first: whoever is killed on the way leaves nothing, or all of it."""
    draft = path.suffix(".new")
    stream = files.create(draft, True)
    try:
        stream.write(bytearray(json.dumps(steps).encode()))
    finally:
        stream.close()
    if not files.rename(draft, path):
        raise ConfigError(f"{draft.toString()} could not be renamed to {path.getName()}: nothing was started")


def _words(steps: Any) -> str:
    return ", ".join(f"by {each['by']} in {each['shards']} shards" for each in steps) or "none"
