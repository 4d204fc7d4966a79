"""Who samples what, when, with which weights, and what is trained next: a pure state machine.

Events go in, commands come out (messages.py). It has no clock, no thread, no socket and no tensor. One thin shell
drives it with real engines (`experience/asynchronous.py`), one simulator with virtual time and faults (simulate.py).
"""
