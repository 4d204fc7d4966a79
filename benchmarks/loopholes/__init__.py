"""Three gameable rewards, each with an honest counterpart and an independent check.

    stuffing.py   a math verifier that accepts any of several stated answers
    equality.py   a code grader that compares results inside the sandbox
    length.py     a judge that mistakes length for quality
    start.py      tiny models that solve a part of each task, and cheat in a few percent of their answers

Each of the three files has two rewards, `check`, and the demonstrations for a start model (`honest`, `cheat`).
"""
