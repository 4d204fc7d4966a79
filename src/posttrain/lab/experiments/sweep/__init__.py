"""`posttrain sweep`: find the best values of some settings, and the values at which training collapses.

    result = posttrain.sweep("base.yaml", ["train.learning_rate=log(1e-5, 1e-2)"], trials=20, folder="sweeps/first")

Optuna proposes and prunes trials. Each trial is an ordinary run in its own process. The folder holds the full state: if
a sweep is killed, the same call continues it.
"""
