"""Training: the training step, its collaborators and the run folder. `posttrain.train(config)` starts here."""
