"""Completions with several turns: a policy, its tools, and the environment that answers it.

    Generator, evaluation --each()--> Episodes --submit(), step()--> RowStream     the sampler, one token of each row
                                         |
                                       Turns --between()--> Bridge                 ids between turns, from the template
                                         |   \\--read()-----> CallFormat           a turn's text -> its tool calls
                                         |
                                     Sessions ==socket==> host --fork--> one process per trajectory
                                                                         Conduct: the user's environment and tools

`Episodes` (episodes.py) takes the place of a sampler. A caller asks it for completions of prompts and gets them one by
one, and does not see that some took several turns. A trajectory is sampled as a request to the sampler and leaves the
batch when its turn ends. Later it is submitted again with the reply appended, while the others go on decoding. `Turns`
(turns.py) has the rules for what follows a turn or a reply. They also hold for engines in other processes
(experience/trajectories.py).

A program that calls a model over HTTP on its own is an agent (agents/). Its process runs a server for it, and its
requests take the place of an environment's answers.

**Where state lives.** The trajectory's `Play`, in the trainer's process, holds its messages and tokens. The state of
the environment lives in a process of its own (conduct.py), from `reset` to `close`. It is forked from a process that
has imported the user's file (host.py). It can be killed without harm to the others, which never see its changes.

**When a trajectory returns to the batch.** As soon as its reply is there, in three cases: with engines; on a GPU, where
the order of sums varies anyway; and on a CPU if each row gets the same bits whatever else is in the batch
(engines/standing_alone.py). Otherwise a count decides, never the clock: once so many wait that the batch has become
small, the trajectory that has waited longest returns (`Round._by_count`), and the run blocks until its reply is there.
So the same run samples the same bits on a CPU, however long tools take.

**Token in, token out.** The context of a turn begins with exactly the ids of the turns before: the sampled ids, and
the ids that the template writes between turns. The bridge (bridge.py) finds those by rendering a short conversation.
Text from outside is never read as a special token, and sampled tokens are never tokenised again.
"""
