"""Agents: programs that call an OpenAI-compatible endpoint, and are trained on the answers that they got.

    Conductor --turn_ended(), answered()--> AgentTurns --find()--> Transcript     the ids that a request continues from
                                                |
                      Sessions ==socket==> host --fork--> one process per trajectory
                                               AgentConduct: the program, in the main thread
                                                   | HTTP, loopback, a token
                                               Endpoint: /v1/chat/completions

An agent is to a trajectory what an environment is: it answers turns. But it makes the requests itself, over HTTP, and
sends the whole conversation each time. So its process has a server of its own (endpoint.py), and passes the requests to
this server on to the trainer (conduct.py). The trainer needs no thread for it. A trajectory whose agent thinks leaves
the batch, like one that waits for a tool. One session's server holds nothing of another session. The composition of
batches does not depend on the clock, unless an agent makes several requests at the same time: then their order does.

**Which ids.** A request may begin with the messages of an earlier request and the answer to it. Such a request
continues from the ids of both, so that sampled text is never tokenised again. The bridge writes the messages that the
client has added since (transcript.py). Any other request begins a new context in the same trajectory: a separate
sequence in training, with the same reward.
"""
