"""Message passing on graphs by jraph."""

import jax.numpy as jnp
import jraph
import numpy as np

from tests.everyday.corpus import everyday


def graph_of(seed, nodes=5, edges=9):
    rng = np.random.default_rng(seed)
    return jraph.GraphsTuple(
        nodes=jnp.asarray(rng.normal(size=(nodes, 2))),
        edges=jnp.asarray(rng.normal(size=(edges, 1))),
        senders=jnp.asarray(rng.integers(0, nodes, edges)),
        receivers=jnp.asarray(rng.integers(0, nodes, edges)),
        n_node=jnp.array([nodes]),
        n_edge=jnp.array([edges]),
        globals=None,
    )


def weights(*shapes):
    sizes = [int(np.prod(shape)) for shape in shapes]
    return [
        0.3 * jnp.cos(jnp.arange(size) + k).reshape(shape)
        for k, (size, shape) in enumerate(zip(sizes, shapes, strict=True))
    ]


@everyday("graph in the closure, sums over edges", library="jraph")
def segment_sums(seed):
    graph = graph_of(seed)

    def loss(params):
        W, U = params
        messages = jnp.tanh(graph.nodes[graph.senders] @ W + graph.edges)
        received = jraph.segment_sum(messages, graph.receivers, num_segments=5)
        return jnp.mean((received @ U) ** 2)

    return loss, weights((2, 3), (3, 1)), ()


@everyday("GraphNetwork with functions for nodes and edges", library="jraph")
def network(seed):
    graph = graph_of(seed)
    target = jnp.asarray(np.random.default_rng(seed).normal(size=(5, 2)))

    def loss(params, graph):
        W, U = params

        def update_edge(edges, sent, received, globals_):
            return jnp.tanh(jnp.concatenate([edges, sent, received], -1) @ W)

        def update_node(nodes, sent, received, globals_):
            return nodes + received @ U

        net = jraph.GraphNetwork(
            update_edge_fn=update_edge,
            update_node_fn=update_node,
            aggregate_edges_for_nodes_fn=jraph.segment_sum,
        )
        return jnp.mean((net(graph).nodes - target) ** 2)

    return loss, weights((5, 3), (3, 2)), (graph,)


@everyday("attention over neighbours", library="jraph")
def attention(seed):
    graph = graph_of(seed)

    @jraph.concatenated_args
    def scores(features):
        return jnp.sum(features, -1)

    def loss(w):
        hidden = graph.nodes @ w
        logits = scores(hidden[graph.senders], hidden[graph.receivers])
        shares = jraph.segment_softmax(logits, graph.receivers, num_segments=5)
        moved = jraph.segment_sum(
            shares[:, None] * hidden[graph.senders], graph.receivers, 5
        )
        return jnp.sum(moved**2)

    return loss, weights((2, 3))[0], ()


@everyday("batch of padded graphs", library="jraph")
def batch(seed):
    graphs = [graph_of(seed + k, 3 + k, 4 + k) for k in range(2)]
    batched = jraph.pad_with_graphs(jraph.batch(graphs), 12, 14, 3)
    labels = jnp.array([0.5, -0.5, 0.0])

    def energy(params, graph):
        conv = jraph.GraphConvolution(
            update_node_fn=lambda n: jnp.tanh(n @ params["W"]), add_self_edges=True
        )
        hidden = conv(graph).nodes
        owner = jnp.repeat(
            jnp.arange(3), graph.n_node, total_repeat_length=hidden.shape[0]
        )
        return jraph.segment_mean(hidden @ params["u"], owner, 3)

    def loss(params):
        mask = jraph.get_graph_padding_mask(batched)
        errors = (energy(params, batched) - labels) ** 2
        return jnp.sum(jnp.where(mask, errors, 0.0))

    W, u = weights((2, 3), (3,))
    return loss, {"W": W, "u": u}, ()
