"""Small verifiable tasks, and the tiny models that learn them on a CPU in minutes."""

from posttrain.tasks.base import ALPHABET, Task
from posttrain.tasks.catalogue import TASKS, find_builtin, find_task

__all__ = ["ALPHABET", "TASKS", "Task", "find_builtin", "find_task"]
