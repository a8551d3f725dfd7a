"""Pipelines: topics in, steps with state, topics out, each micro-batch one transaction.

    PIPELINE = Pipeline(name="pages", inputs=[Input("clicks", Click)], steps=[Step(count, by="page")],
    outputs={"views": 3})

`orders`, `viewing` and `pricing` are the reference pipelines: run them, read them, start your own from them
(`docs/your-own-pipeline.md`). Needs `pip install 'onceflow[spark]'`.
"""

from onceflow.pipelines.pipeline import Input, Pipeline, Record, Send, State, Step, dead_letter
from onceflow.pipelines.tables import Json, Lands, Time

__all__ = ["Input", "Json", "Lands", "Pipeline", "Record", "Send", "State", "Step", "Time", "dead_letter"]
