"""Agents: programs that ask an OpenAI-compatible endpoint, and are trained by what they asked.

    Conductor --turn_ended(), answered()--> AgentTurns --find()--> Transcript     from which ids a request goes on
                                                |
                      Sessions ==socket==> host --fork--> one process per trajectory
                                               AgentConduct: the program, in the main thread
                                                   | HTTP, loopback, a token
                                               Endpoint: /v1/chat/completions

An agent is to a trajectory what an environment is: it answers turns. But it asks by itself, over HTTP, and sends the
whole conversation each time. So its process has a server of its own (endpoint.py), whose requests are what the trainer
hears from the process (conduct.py): the trainer needs no thread, trajectories that think leave the batch as those do
that wait for a tool, and one session's server holds nothing of another session. The composition of batches does not
depend on the clock, unless an agent makes several requests at once: then their order does.

**Which ids.** A request whose messages begin with those of an earlier one and with the answer that it got goes on from
the ids of both, so that what was drawn is never tokenised again; what the client wrote since then comes from the bridge
(transcript.py). Any other request begins a new context in the same trajectory: a sequence of its own in training, with
the same reward.
"""
