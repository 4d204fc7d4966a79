"""An engine: posttrain's own sampler in a process, which says in its log how many rows it was given."""

from posttrain.engines.process import EngineProcess


class CountedEngine(EngineProcess):
    program = "acme_rl.worker"
