"""Completions of several turns: a policy, its tools, and the environment that answers it.

    Generator, evaluation --each()--> Episodes --submit(), step()--> RowStream     the sampler, one token of each row
                                         |
                                       Turns --between()--> Bridge                 ids between turns, from the template
                                         |   \\--read()-----> CallFormat           a turn's text -> its tool calls
                                         |
                                     Sessions ==socket==> host --fork--> one process per trajectory
                                                                         Conduct: the user's environment and tools

`Episodes` (episodes.py) stands where a sampler stands: whoever asks it for completions of prompts gets them one by one,
and does not see that some took several turns. A trajectory is drawn as a request of the sampler, leaves it when its
turn ends, and is submitted again, longer by what came back; the others go on decoding meanwhile. What follows from a
turn or from an answer is said in `Turns` (turns.py), for engines in other processes, too (experience/trajectories.py).

A program that asks a model by itself, over HTTP, is an agent (agents/): its process serves it, and its requests stand
where the answers of an environment do.

**Where state lives.** What was said and drawn: in the trajectory's `Play`, in the trainer's process. What the
environment remembers: in a process of its own (conduct.py), forked from one that has imported the user's file
(host.py), from `reset` to `close`. It can be killed without hurting another, and what one changes no other sees.

**When one comes back.** As soon as it is ready, where that changes nothing: with engines, on a GPU, where the order of
sums is not kept anyway, and on a CPU where each row gets the same bits whatever is decoded beside it
(engines/standing_alone.py). Else by counting, never by the clock: the trajectory that has waited longest comes back as
soon as so many wait that the batch has become small (`Round._by_count`), and is then waited for. So on a CPU the same
run draws the same bits, however long tools take.

**Token in, token out.** What a turn sees begins with the very ids of the turns before: those that were drawn, and those
that the template writes between them (bridge.py), which are found by rendering a short conversation before and after.
Text that came from outside is never read as a special token. Nothing that was drawn is tokenised again.
"""
