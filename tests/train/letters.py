"""A reward function of a module: each process that calls it imports the module again from its file."""


def count_a(completions, answer, **columns):
    return [float(completion.count("a") == len(gold)) for completion, gold in zip(completions, answer, strict=True)]
