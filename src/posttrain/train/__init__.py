"""Training: the step, what it works with, and the folder that a run leaves. `posttrain.train(config)` calls it."""
