"""A language model that judges answers, as a reward: behind an endpoint, from a folder, or the policy itself.

templates.py   the questions to the judge; answers are delimited, and their contents are data
substance.py   the answers that cannot be good, whatever a judge would say
verdicts.py    the meaning of the last line of a reply
modes.py       the questions about a group of answers, and the scores that the verdicts give
endpoint.py    an OpenAI-compatible server: concurrent requests with retries and a budget
local.py       a model in this process: from a folder, or the policy with its current weights
judge.py       all of this together; a question is asked only once
"""

from posttrain.rewards.judge.judge import Graded, Judge
from posttrain.rewards.judge.records import Judgement, Reply, judge_metrics

__all__ = ["Graded", "Judge", "Judgement", "Reply", "judge_metrics"]
