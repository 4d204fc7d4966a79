"""Sends a run to TensorBoard, Trackio or Weights & Biases. A separate process reads the run's files and sends them.

The run writes its folder as always and knows nothing about trackers. A follower (follow.py) reads new lines of
metrics.jsonl and events.jsonl and sends them to the tracker (trackers.py). So a tracker that is slow, has no network or
crashes cannot affect the run. Missing data can be sent later, even for a killed run. A resumed run continues in the
same place, because the folder records what was sent.
"""
