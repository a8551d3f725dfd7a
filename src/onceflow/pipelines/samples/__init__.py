"""Input for the reference pipelines, made from a seed: mostly good, and everything that goes wrong in real life."""
