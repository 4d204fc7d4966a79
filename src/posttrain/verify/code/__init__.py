"""Rewards for programs: what a model wrote is run in a sandbox and judged outside of it.

>>> from posttrain.verify.code import code
>>> code("```python\\ndef f(n): return n + 1\\n```", test_list=["assert f(1) == 2"]).reason
'correct'
"""

from posttrain.verify.code.runner import CodeRunner, code
from posttrain.verify.code.suite import COLUMNS

__all__ = ["COLUMNS", "CodeRunner", "code"]
