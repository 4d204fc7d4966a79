"""Engines and reward workers on the nodes of a Ray cluster. Nothing else imports Ray.

    trainer's machine                                       a node
    EngineProcess, WorkerProcess                            actor (host.py)
          |  bytes of a socket                                    |  bytes of a socket
    RemoteChild (remote.py)  ---- calls of the actor ---->  process: engine or reward worker
    PutWeights (weights.py)  ---- object store ---------->  memory that the engine reads

Ray holds processes, hands on what they say, and carries weights: one put for each publication, which nodes pull. It
decides nothing. An actor has no state that is missed and is never restarted by Ray: whoever drives an engine or a
reward worker starts a new one, as on one machine.
"""
