"""The facts that a node reports about itself before a rank starts there. It imports little, because each node
imports it again."""

from __future__ import annotations

from dataclasses import dataclass

import ray


@dataclass(frozen=True)
class Site:
    """Facts about the node of a bundle."""

    node: str
    address: str
    port: int
    """A port on which nothing listens on that node."""
    head: str
    """The address of the cluster as seen from that node."""
    code: str
    """The place where the cluster keeps the files that are sent to the nodes."""


def look_around() -> Site:
    """The facts about the node that runs this function."""
    from posttrain.train.local_ranks import free_port

    context, address = ray.get_runtime_context(), ray.util.get_node_ip_address()
    return Site(
        node=context.get_node_id(),
        address=address,
        port=free_port(address),
        head=context.gcs_address,
        code=context.runtime_env["working_dir"],
    )
