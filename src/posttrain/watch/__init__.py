"""What a run watches to see that it learns what was meant: an independent check on what the reward accepts, the
held-out score, the answers themselves, and whether engines and trainer mean the same by a log-probability.

    records.py       Step, HeldOut, Alarm: what an alarm sees and says
    check.py         the independent check, and the accepted answers that it is shown
    disagreement.py, comparisons.py (with course.py), kl.py, heldout.py, mismatch.py
                     the alarms: each looks at one step after the other, and its state is plain JSON
    bisection.py     why engines say something else than the trainer; rounding.py: what may differ
    answers.py       the numbers about lengths and texts that they compare
    watch.py         all of them together: the collaborator of a run

What happens when one fires: train/respond.py.
"""

from posttrain.watch.check import IndependentCheck
from posttrain.watch.records import Alarm
from posttrain.watch.watch import NOTHING_SEEN, Looked, Watch, nothing_to_watch

__all__ = ["NOTHING_SEEN", "Alarm", "IndependentCheck", "Looked", "Watch", "nothing_to_watch"]
