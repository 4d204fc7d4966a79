"""The alarms of a run, which show whether it learns what you mean. They watch an independent check of the answers that
the reward accepts, the held-out score, the answers, and whether engine and trainer log-probabilities agree.

    records.py       Step, HeldOut, Alarm: the inputs and the output of an alarm
    check.py         the independent check, and the accepted answers that it sees
    disagreement.py, comparisons.py (with course.py), kl.py, heldout.py, mismatch.py
                     the alarms: each looks at one step after the other, and its state is plain JSON
    bisection.py     why engines and trainer disagree; rounding.py: differences that rounding explains
    answers.py       the statistics of lengths and texts that alarms compare
    watch.py         all alarms together: the collaborator of a run

train/respond.py decides what happens when an alarm fires.
"""

from posttrain.watch.check import IndependentCheck
from posttrain.watch.records import Alarm
from posttrain.watch.watch import NOTHING_SEEN, Looked, Watch, nothing_to_watch

__all__ = ["NOTHING_SEEN", "Alarm", "IndependentCheck", "Looked", "Watch", "nothing_to_watch"]
