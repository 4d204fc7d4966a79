"""A pure state machine that decides what engines sample, when and with which weights, and what is trained next.

Events go in, commands come out (messages.py). It has no clock, no thread, no socket and no tensor. A thin shell drives
it with real engines (`experience/asynchronous.py`), and a simulator with virtual time and faults (simulate.py).
"""
