"""Ranks, engines and reward workers on the nodes of a Ray cluster. Nothing else imports Ray.

    trainer's machine                                       a node
    EngineProcess, WorkerProcess                            actor (host.py)
          |  bytes of a socket                                    |  bytes of a socket
    RemoteChild (remote.py)  ---- calls of the actor ---->  process: engine, reward worker or rank
    PutWeights (weights.py)  ---- object store ---------->  memory that the engine reads

Ray holds processes, hands on what they say, and carries weights: one put for each publication, which nodes pull. It
decides nothing. An actor has no state that is missed and is never restarted by Ray: whoever drives an engine or a
reward worker starts a new one, as on one machine; the ranks of a trainer (ranks.py) are started again together.

    reservation.py   the connection, and one placement group for all that a run starts
    connect.py       where the trainer's engines and reward workers are started: it reserves, or joins what its job has
    ranks.py         where the ranks of a job are started, by a process that trains nothing
    luggage.py       the code and files that go to the nodes
    submit.py        a whole run as a Ray job
"""
