"""Ranks, engines and reward workers on the nodes of a Ray cluster. Nothing else imports Ray.

    trainer's machine                                       a node
    EngineProcess, WorkerProcess                            actor (host.py)
          |  bytes of a socket                                    |  bytes of a socket
    RemoteChild (remote.py)  ---- calls of the actor ---->  process: engine, reward worker or rank
    PutWeights (weights.py)  ---- object store ---------->  memory that the engine reads

Ray holds processes, relays their messages, and carries weights: one put per publication, which nodes pull. It decides
nothing. An actor has no state that must survive, and Ray never restarts it. The driver of an engine or a reward worker
starts a new one, as on one machine. The ranks of a trainer (ranks.py) are restarted together.

    reservation.py   the connection, and one placement group for everything that a run starts
    connect.py       starts the trainer's engines and reward workers, in its own reservation or in its job's
    ranks.py         starts the ranks of a job from a process that trains nothing
    luggage.py       the code and files that are sent to the nodes
    submit.py        a whole run as a Ray job
"""
