"""The algorithm explorer: one self-contained page with the results of planner, algorithm cards and advisor."""

from posttrain.lab.explore.page import render, write_page

__all__ = ["render", "write_page"]
