"""Sending a run to TensorBoard, Trackio or Weights & Biases: by a reader of its files, in a process of its own.

The run writes its folder as it always does and knows nothing of trackers. A follower (follow.py) reads what is added to
metrics.jsonl and events.jsonl and tells the tracker (trackers.py). So a tracker that is slow, asks for a password, has
no network or crashes costs the run nothing; what is missing can be sent afterwards, of a run that was killed too; and a
run that is resumed goes on in the same place, because the follower knows by the folder what it has sent.
"""
