"""Reading and checking datasets, rendering prompts and examples, collation, and the order in which rows are read."""

from posttrain.data.inspection import DataReport, inspect_data
from posttrain.data.read import Row, read_rows

__all__ = ["DataReport", "Row", "inspect_data", "read_rows"]
