"""An algorithm, a reward, a task and an engine for posttrain."""
