"""Pure functions on tensors: they read only their arguments and import only torch.

Shape suffixes: P prompts, G completions per prompt, B = P * G rows, T tokens, V vocabulary, N preference pairs.
"""
