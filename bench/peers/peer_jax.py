"""JAX on the same work: a jitted step that gives its memory on to the next, on one core and several."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
from common import Entry, Fresh, Losses, numbered, repeated

GIVEN = common.arguments()
THREADS = f"JAX, {GIVEN.threads} threads"
ALONE = "JAX, 1 thread"


def library(threads):
    """XLA has as many threads as the process has cores when it starts."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import jax

    return jax


def stack(jax, layers):
    """Weights (in, out), as JAX's libraries have them, and biases."""
    return [(jax.device_put(w.T.copy()), jax.device_put(b)) for w, b in common.weights(layers)]


def logits(jax, layers, x):
    for w, b in layers[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def descended(jax, rate, values, gradients):
    return jax.tree.map(lambda value, gradient: value - rate * gradient, values, gradients)


def mlp(jax, rate):
    def loss(layers, x, labels):
        scores = jax.nn.log_softmax(logits(jax, layers, x))
        return -jax.numpy.take_along_axis(scores, labels[:, None], 1).mean()

    def step(layers, x, labels):
        value, gradients = jax.value_and_grad(loss)(layers, x, labels)
        return descended(jax, rate, layers, gradients), value

    return stack(jax, common.MLP), step, common.mlp_batch


def recommender(jax, rate):
    """The gradient of the rows that were looked up is added to these alone: a dense one of the table takes longer."""
    np = jax.numpy

    def loss(rows, top, targets):
        z = logits(jax, top, rows.reshape(len(rows), -1))
        return (np.maximum(z, 0) - z * targets + np.log1p(np.exp(-np.abs(z)))).mean()

    def step(values, ids, targets):
        table, top = values
        value, (rows, layers) = jax.value_and_grad(loss, (0, 1))(table[ids], top, targets)
        return (table.at[ids].add(-rate * rows), descended(jax, rate, top, layers)), value

    return (jax.device_put(common.table()), stack(jax, common.TOP)), step, common.recommender_batch


def training(name, threads, rate=common.RATE):
    """A function that makes a step on batch number n and gives its loss."""
    jax = library(threads)
    values, step, batch = (mlp if name == "mlp" else recommender)(jax, rate)
    step = jax.jit(step, donate_argnums=0)
    # Ids and labels as int32: JAX has no others by default.
    device = lambda array: jax.device_put(array.astype("int32") if array.dtype.kind == "i" else array)
    batches = [tuple(map(device, batch(n))) for n in range(common.BATCHES)]

    def next_step(n):
        nonlocal values
        values, loss = step(values, *batches[n % common.BATCHES])
        return loss

    return next_step


def steps(name, threads):
    return lambda: repeated(numbered(training(name, threads)), lambda loss: loss.block_until_ready())


def losses(name):
    def make():
        step = training(name, GIVEN.threads, common.LOSS_RATE[name])
        return lambda: [step(n).item() for n in range(common.LOSS_STEPS)]

    return make


def products(name):
    """All products of a step, as one jitted function."""

    def make():
        jax = library(GIVEN.threads)
        pairs = [tuple(map(jax.device_put, pair)) for pair in common.products(name)]
        all_of_them = jax.jit(lambda pairs: [a @ b for a, b in pairs])
        return repeated(lambda: all_of_them(pairs), lambda made: jax.block_until_ready(made))

    return make


def entries():
    for name in ["mlp", "recommender"]:
        two = f"{name}_2_replicas"
        yield Entry(f"{name}_1_replicas", "steps/s", ALONE, steps(name, 1))
        yield Entry(two, "steps/s", THREADS, steps(name, GIVEN.threads))
        yield Entry(f"{name}_products", "µs", THREADS, products(name))
        yield Fresh(f"memory_{name}", "MiB", THREADS, two, __file__)
        yield Losses(f"losses_{name}", "", THREADS, losses(name))
    yield Fresh("start_to_first_step", "ms", THREADS, "mlp_2_replicas", __file__)


if __name__ == "__main__":
    common.main(GIVEN, list(entries()), "jax")
