"""`posttrain sweep`: which values of some settings are best here, and which of them turn success into collapse.

    result = posttrain.sweep("base.yaml", ["train.learning_rate=log(1e-5, 1e-2)"], trials=20, folder="sweeps/first")

Optuna proposes and prunes; each trial is an ordinary run in a process of its own. The folder holds everything, so that
the same call goes on where a killed one was.
"""
