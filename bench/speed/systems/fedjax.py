"""FedJAX: federated averaging with its just-in-time compiled backend, the default."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from workloads import Array, Workload

from systems.line import Setting, serve

GROUPS = 8
Layers = list[dict[str, Any]]


def initial(net: str) -> Layers:
    """Return initial weights with the distribution of torch."""
    rng = np.random.default_rng(0)

    def uniform(bound: float, *shape: int) -> Array:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    def linear(wide: int, out: int) -> dict[str, Array]:
        return {"w": uniform(wide**-0.5, wide, out), "b": uniform(wide**-0.5, out)}

    def convolution(wide: int, out: int) -> dict[str, Array]:
        weights = {"w": uniform((9 * wide) ** -0.5, 3, 3, wide, out), "b": uniform((9 * wide) ** -0.5, out)}
        return weights | {"scale": np.ones(out, np.float32), "shift": np.zeros(out, np.float32)}

    if net == "mlp":
        return [linear(784, 200), linear(200, 200), linear(200, 10)]
    return [*(convolution(*wide) for wide in ((1, 32), (32, 32), (32, 64), (64, 64))), linear(64 * 7 * 7, 10)]


def logits(net: str, layers: Layers, x: Any) -> Any:
    return _mlp(layers, x) if net == "mlp" else _cnn_gn(layers, x)


def _mlp(layers: Layers, x: Any) -> Any:
    hidden = x.reshape(len(x), -1)
    for layer in layers[:-1]:
        hidden = jax.nn.relu(hidden @ layer["w"] + layer["b"])
    return hidden @ layers[-1]["w"] + layers[-1]["b"]


def _cnn_gn(layers: Layers, x: Any) -> Any:
    hidden = x[..., None]
    for number, layer in enumerate(layers[:-1]):
        order = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(hidden, layer["w"], (1, 1), "SAME", dimension_numbers=order)
        hidden = jax.nn.relu(_group_norm(hidden + layer["b"]) * layer["scale"] + layer["shift"])
        if number % 2:
            n, height, width, channels = hidden.shape
            hidden = hidden.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))
    return hidden.reshape(len(hidden), -1) @ layers[-1]["w"] + layers[-1]["b"]


def _group_norm(x: Any) -> Any:
    n, height, width, channels = x.shape
    groups = x.reshape(n, height * width, GROUPS, channels // GROUPS)
    centred = groups - groups.mean((1, 3), keepdims=True)
    normed = centred * jax.lax.rsqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    return normed.reshape(x.shape)


def algorithm(work: Workload) -> Any:
    def loss(layers: Layers, batch: Any, key: Any) -> Any:
        scores = jax.nn.log_softmax(logits(work.net, layers, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    return fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn=jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(work.lr),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch, num_epochs=work.epochs, drop_remainder=False
        ),
    )


class FedJax:
    def __init__(self, setting: Setting) -> None:
        self.work = setting.workload
        train, self.test = setting.images()
        shards = enumerate(self.work.shards())
        held = {n: {"x": train.x[shard], "y": train.y[shard].astype(np.int32)} for n, shard in shards}
        data = fedjax.InMemoryFederatedData(held)
        fedjax.set_for_each_client_backend("jit")
        self.algorithm = algorithm(self.work)
        self.state = self.algorithm.init(initial(self.work.net))
        self.sampler = fedjax.client_samplers.UniformGetClientSampler(fd=data, num_clients=self.work.cohort, seed=0)
        self.predict = jax.jit(lambda layers, x: logits(self.work.net, layers, x).argmax(-1))

    def round(self) -> None:
        self.state, _ = self.algorithm.apply(self.state, self.sampler.sample())
        jax.block_until_ready(self.state.params)

    def accuracy(self) -> float:
        chunks = np.split(self.test.x, 10)
        found = np.concatenate([np.asarray(self.predict(self.state.params, x)) for x in chunks])
        return float((found == self.test.y).mean())


if __name__ == "__main__":
    fedjax_ = FedJax(Setting.read())
    serve(f"fedjax 0.0.17, jax {jax.__version__}", fedjax_.round, fedjax_.accuracy)
