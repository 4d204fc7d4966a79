"""Pipelines: several stages in one file. Each stage is measured, and each hand-over of a model is proven."""
