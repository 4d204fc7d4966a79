"""The algorithm explorer: one page that carries the answers of planner, cards and advisor, and needs nothing else."""

from posttrain.lab.explore.page import render, write_page

__all__ = ["render", "write_page"]
