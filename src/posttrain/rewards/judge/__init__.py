"""A language model that judges answers, as a reward: over an endpoint, from a folder, or the policy itself.

templates.py   what the judge is asked; answers are delimited, and what they contain is data
substance.py   which answers cannot be good ones, whatever a judge would say
verdicts.py    what its last line means
modes.py       which questions a group of answers gives, and what the verdicts are worth
endpoint.py    an OpenAI-compatible server: side by side, with retries and a budget
local.py       a model in this process: of a folder, or the policy as it is at that moment
judge.py       all of it together; what was asked once is not asked again
"""

from posttrain.rewards.judge.judge import Graded, Judge
from posttrain.rewards.judge.records import Judgement, Reply, judge_metrics

__all__ = ["Graded", "Judge", "Judgement", "Reply", "judge_metrics"]
