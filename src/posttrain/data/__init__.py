"""Reading and checking datasets, rendering prompts and examples, collation, and the order in which rows are read."""
