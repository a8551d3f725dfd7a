"""What the reference pipelines must write: recomputed in plain Python, without Spark and without their code."""
