"""The facts that a node reports about itself before a rank starts there. It imports little, because each node runs it
anew."""

from __future__ import annotations

from dataclasses import dataclass

import ray


@dataclass(frozen=True)
class Site:
    """What is known of a bundle's node."""

    node: str
    address: str
    port: int
    """On which nobody listens there."""
    head: str
    """The address of the cluster, from there."""
    code: str
    """Where the cluster keeps what goes to the nodes."""


def look_around() -> Site:
    """What a node knows of itself."""
    from posttrain.train.local_ranks import free_port

    context, address = ray.get_runtime_context(), ray.util.get_node_ip_address()
    return Site(
        node=context.get_node_id(),
        address=address,
        port=free_port(address),
        head=context.gcs_address,
        code=context.runtime_env["working_dir"],
    )
