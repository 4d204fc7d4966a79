"""Three rewards that can be cheated, each with the honest one beside it and a check that knows better.

    stuffing.py   a mathematics verifier that accepts any of several stated answers
    equality.py   a code grader that compares where the program runs
    length.py     a judge that takes length for quality
    start.py      tiny models that solve a part of each task, and cheat in a few answers of a hundred

Each of the three files holds a task (`draw`), two rewards, `check`, and what a start model is shown (`honest`,
`cheat`).
"""
