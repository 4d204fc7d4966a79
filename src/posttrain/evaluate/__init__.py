"""Held-out evaluation: greedy and sampled answers, pass@k, majority vote, intervals, forgetting.

`posttrain.evaluate(model, data, rewards, k=4)` is `posttrain.evaluate.api.evaluate`.
"""
