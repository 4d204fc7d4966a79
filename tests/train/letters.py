"""A reward function of a module: it is found again by its file, which each process that calls it imports."""


def count_a(completions, answer, **columns):
    return [float(completion.count("a") == len(gold)) for completion, gold in zip(completions, answer, strict=True)]
