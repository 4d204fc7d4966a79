"""Rewards for programs: a model's program runs in a sandbox and is judged outside of it.

>>> from posttrain.verify.programs import code
>>> code("```python\\ndef f(n): return n + 1\\n```", test_list=["assert f(1) == 2"]).reason
'correct'
"""

from posttrain.verify.programs.suite import COLUMNS
from posttrain.verify.programs.verify import code

__all__ = ["COLUMNS", "code"]
