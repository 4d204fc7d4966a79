"""What can be known before a run is paid for: which algorithm, whether it fits, what it costs. Nothing imports torch.

`cards` holds the facts of every algorithm as data, written from the classes; `advisor` chooses one by the rules of
`guides.yaml`; `ranges` points out settings that nobody has published; `plan` counts memory, time and money; `explore`
makes a page of it.
"""
