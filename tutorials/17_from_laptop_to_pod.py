# %% [markdown]
# # Lesson 17. From laptop to pod
#
# **You will** spread a routed layer over two devices and send tokens from one to the other by hand; see what changes
# when each device balances its own tokens; share out the memory of the optimizer; then train one model on four devices
# that your computer makes up, stop it, and go on with the devices in another order. In the end you plan the memory of a
# model that no single device could hold.
#
# **You need** NumPy, lessons 1 and 4; JAX from section 7 on, and `pip install 'routelaws[train]'` for section 9.
# Pictures need matplotlib.
#
# **Files** [`parallel.py`](../reference/parallel.py), [`experts.py`](../reference/experts.py), and of the fast side
# [`training/mesh.py`](../accelerated/training/mesh.py), [`mesh_plan.py`](../accelerated/mesh_plan.py).

# %% [markdown]
# ## 1. Two devices
#
# A *device* is a processor with a memory of its own. A large model has more experts than one device can hold, so the
# experts are spread over devices. The tokens are spread, too. But a token is rarely where its expert is.
#
# We take the layer of lesson 1: four tokens, two experts, gates from a softmax. First on one device, where nobody is
# dropped. (Of the helpers, `same` stops the lesson unless two results agree up to rounding, and `figure` shows a
# picture.)

# %%
import numpy as np
from lesson import COLOURS, figure, needs, same

from routelaws.reference.experts import expert_capacity, expert_ffn, routed_ffn
from routelaws.reference.routers.top_k import switch_router

words = ["the", "cat", "sat", "down"]
text = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 0.5]])  # one row for each token
w = np.array([[1.0, -1.0], [0.0, 1.0]])
up = np.array([[[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [[0.0, 1.0, -1.0], [1.0, 0.0, 1.0]]])  # [E, d, f]
down = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]])  # [E, f, d]
routing = switch_router(text @ w)
alone = routed_ffn({"up": up, "down": down}, text, routing.expert, routing.gate).output
for word, (e,), row in zip(words, routing.expert, alone, strict=True):
    print(f"{word:5} expert {e}  result {row.round(3)}")
assert list(routing.expert[:, 0]) == [0, 0, 1, 0]

# %% [markdown]
# Now there are $n = 2$ devices. Device $i$ has $T = 2$ of the tokens and one of the experts. In NumPy a device is an
# entry of a leading axis: `x[i]` is what device $i$ holds.

# %%
n, T, E, d = 2, 2, 2, 2
x, expert, gate = text.reshape(n, T, d), routing.expert.reshape(n, T), routing.gate.reshape(n, T)
ups, downs = up.reshape(n, E // n, d, 3), down.reshape(n, E // n, 3, d)
for i in range(n):
    for t in range(T):
        where = "at home" if expert[i, t] == i else f"has to go to device {expert[i, t]}"
        print(f"device {i}: {words[i * T + t]:5} {x[i, t]} wants expert {expert[i, t]}: {where}")
assert (expert != np.arange(n)[:, None]).sum() == 1

# %% [markdown]
# ## 2. All-to-all by hand
#
# Each device fills a *buffer* with a row of slots for each expert, of all $E$ experts. There are $C$ slots in a row,
# and here $C = T$, so that nobody is dropped. The rows are cut into $n$ *parts*: part $j$ has the rows of the experts
# on device $j$.

# %%
C = T
buffers, slot = np.zeros((n, E, C, d)), np.zeros((n, T), dtype=int)
holds = np.full((n, E, C), "-", dtype=object)  # the words, to look at
for i in range(n):
    waiting = [0] * E
    for t in range(T):
        e = expert[i, t]
        slot[i, t], waiting[e] = waiting[e], waiting[e] + 1
        buffers[i, e, slot[i, t]] = x[i, t]
        holds[i, e, slot[i, t]] = words[i * T + t]
for i in range(n):
    print(f"device {i}:", *(f"for expert {e} {holds[i, e].tolist()} {buffers[i, e].tolist()}" for e in range(E)))
assert (holds != "-").sum() == n * T

# %% [markdown]
# Then all devices send at once: device $j$ sends its part $i$ to device $i$. If $s_{ji}$ is part $i$ on device $j$, the
# devices hold afterwards
#
# $$r_{ij} = s_{ji}$$
#
# Each device sends a part to every device, hence the name *all-to-all*. (A device sends one to itself, too. That part
# stays.)

# %%
own = E // n  # experts on each device, and so rows in each part
arrived, moved = np.zeros(buffers.shape), holds.copy()
for i in range(n):
    for j in range(n):
        arrived[i, j * own : (j + 1) * own] = buffers[j, i * own : (i + 1) * own]
        moved[i, j * own : (j + 1) * own] = holds[j, i * own : (i + 1) * own]
for i in range(n):
    print(f"device {i}:", *(f"from device {j} {moved[i, j].tolist()} {arrived[i, j].tolist()}" for j in range(n)))
assert moved[0, 1, 0] == "down"

# %% [markdown]
# For all at once, this is a transposition of devices and parts. [`all_to_all`](../reference/parallel.py) does the same.
# Done twice, it brings everything back.

# %%
from routelaws.reference.parallel import all_to_all

same(buffers.reshape(n, n, own, C, d).swapaxes(0, 1).reshape(buffers.shape), arrived)
same(all_to_all(buffers), arrived)
same(all_to_all(all_to_all(buffers)), buffers)


# %% tags=["picture"]
def draw(*panels):
    for axes, held, title in zip(panels, (holds, moved), ("filled", "after all-to-all"), strict=True):
        for (i, place), word in np.ndenumerate(held.reshape(n, E * C)):
            box, ink = ("#eeeeee", "#666666") if word == "-" else (COLOURS[expert.ravel()[words.index(word)]], "white")
            axes.barh(i, 0.94, left=place - 0.47, height=0.6, color=box)
            axes.text(place, i, word.replace("-", "empty"), ha="center", va="center", color=ink)
        axes.axvline(C * own - 0.5, color="#4a4a4a", linewidth=1)
        axes.set(xlabel="slot of the buffer, from 0", ylabel="device", title=title, xlim=(-0.6, 3.6), ylim=(1.5, -0.5))
        axes.set(xticks=range(E * C), yticks=range(n))
        axes.grid(False)


# %% tags=["picture"]
figure(
    draw,
    "The buffers of two devices before and after all-to-all. A line parts the two parts of each buffer. Blue tokens "
    "want expert 0, orange ones expert 1: afterwards device 0 has all blue tokens, and device 1 all orange ones.",
    panels=2,
    height=2.4,
)

# %% [markdown]
# Now every device runs its own expert on what arrived, a second all-to-all sends the results back to the slots that
# they came from, and each token takes its result from there, times its gate.

# %%
outputs = np.zeros(buffers.shape)
for i in range(n):
    for row in range(E):
        outputs[i, row] = expert_ffn(ups[i, row % own], downs[i, row % own], arrived[i, row])
back = all_to_all(outputs)  # row e: from expert e
y = np.zeros(x.shape)
for i in range(n):
    for t in range(T):
        y[i, t] = gate[i, t] * back[i, expert[i, t], slot[i, t]]
        print(f"device {i}: {words[i * T + t]:5} {y[i, t].round(3)}")
same(y.reshape(n * T, d), alone)

# %% [markdown]
# The numbers are those of one device. [`routed_ffn_on_devices`](../reference/parallel.py) is the whole layer.

# %%
from routelaws.reference.parallel import routed_ffn_on_devices

experts = {"up": ups, "down": downs}
spread = routed_ffn_on_devices(experts, x, expert[..., None], gate[..., None])
same(spread.output, y)

# %% [markdown]
# ## 3. What travels
#
# Empty slots travel, too. So what a device sends does not depend on what the router decides, and that is what makes
# capacities popular. Let each device have $T$ tokens and one expert, so that $E = n$. With the capacity factor $c$ a
# part has $C = \lceil c T / E \rceil$ rows. All parts but one leave the device:
#
# $$\mathrm{rows} = (n - 1) \left\lceil \frac{c T}{n} \right\rceil \approx c T$$
#
# The other way to bring tokens and experts together is to fetch all experts to the tokens: $n - 1$ experts for each
# device, of $8 d^2$ numbers each. Numbers have four bytes.

# %%
many, width, c = 4096, 1024, 1.25  # tokens of a device, width d, capacity factor
sent = {}
for devices in (2, 8, 32, 128):
    rows = 0
    for other in range(devices):  # device 0 sends a part to each other one
        rows += expert_capacity(many, devices, 1, c) if other > 0 else 0
    sent[devices] = [4 * width * rows, 4 * 8 * width**2 * (devices - 1)]
    print(f"{devices:4} devices: tokens {sent[devices][0] / 1e6:5.1f} MB, experts {sent[devices][1] / 1e6:8.1f} MB")
assert max(tokens for tokens, _ in sent.values()) < 4 * width * c * many * 1.02
same([experts for _, experts in sent.values()], 32 * width**2 * (np.array(list(sent)) - 1))

# %% [markdown]
# What a device sends of its tokens hardly grows with the number of devices. What it would fetch of the experts grows
# without limit. So the tokens travel, and they travel twice in each routed layer: there and back.

# %% [markdown]
# ## 4. Whose queue, whose balance?
#
# Now with $c = 1$, where there are too few slots. Who is dropped depends on who queues together. There are two answers,
# and they give two different layers:
#
# - *shard*: the tokens of each device are a group, and each group has its own $\lceil c T / E \rceil$ slots at each
#   expert;
# - *global*: the tokens of all devices are one group and have $\lceil c n T / E \rceil$ slots at each expert.

# %%
for group in ("shard", "global"):
    slots = expert_capacity(T if group == "shard" else n * T, E, 1, 1.0)
    spread = routed_ffn_on_devices(experts, x, expert[..., None], gate[..., None], 1.0, group=group)
    dropped = [words[t] for t, row in enumerate(spread.output.reshape(n * T, d)) if not row.any()]
    print(f"{group:6}: {slots} slots at each expert for each group; dropped: {dropped}")
    pieces = n if group == "shard" else 1  # on one device, with the same groups
    cut = [values.reshape(pieces, -1, values.shape[-1]) for values in (text, routing.expert, routing.gate)]
    parts = [routed_ffn({"up": up, "down": down}, *each, 1.0).output for each in zip(*cut, strict=True)]
    same(spread.output.reshape(n * T, d), np.concatenate(parts))

# %% [markdown]
# In lesson 1 "down" came too late, as it does here with the global group. With a group for each device it is "cat". In
# both cases the layer over devices is the layer on one device *with the same groups*. That sentence is what the tests
# of this project hold every router to.
#
# Routers that balance (lessons 3 and 4) have the same choice. Take eight devices, each with a text about something
# else, so that its tokens prefer experts of their own. How well do the tokens fit their experts if balance is asked of
# each device, of pairs of devices, and so on? We use BASE, which finds the best balanced assignment.

# %%
from routelaws.reference.routers.base import balanced_assignment

draws = np.random.default_rng(0)
topics = 1.5 * draws.normal(size=(8, 1, 4))  # [devices, 1, E]: what the text of a device is about
scores = (topics + draws.normal(size=(8, 16, 4))).reshape(8 * 16, 4)
fits = {}
for pieces in (8, 4, 2, 1):
    group = len(scores) // pieces
    total = sum(balanced_assignment(scores[i * group : (i + 1) * group]).objective for i in range(pieces))
    fits[group] = total / len(scores)
    print(f"{pieces} groups of {group:3} tokens: mean score of the experts {fits[group]:.3f}")
best = scores.max(axis=1).mean()
print(f"no balance at all: {best:.3f}")
assert list(fits.values()) == sorted(fits.values()) and fits[len(scores)] < best

# %% [markdown]
# The order is no accident: what is balanced within each group is balanced over all of them, so that the larger group
# has at least the same choices. Small groups cost fit; large ones cost messages. How many? Sinkhorn (lesson 4) needs
# few: each device works on the rows of its own tokens, and of the others it needs to know only how much mass every
# expert has. [`psum`](../reference/parallel.py) gives each device that sum over all devices.

# %%
from routelaws.reference.notation import softmax
from routelaws.reference.parallel import psum
from routelaws.reference.routers.sinkhorn import sinkhorn_plan

z = scores.reshape(8, 16, 4)  # [devices, tokens, E]
g = np.zeros(4)  # the potentials of the experts; every device has the same ones
for _ in range(20):
    mass = np.zeros((8, 4))
    for i in range(8):
        mass[i] = softmax(z[i] + g).sum(axis=0) / len(scores)
    g = g - np.log(4 * psum(mass)[0])
plan = softmax(z + g) / len(scores)
same(plan.reshape(-1, 4), sinkhorn_plan(scores, num_sweeps=20).plan)
print("numbers that a device sends in a sweep:", mass[0].size, " loads:", plan.sum(axis=(0, 1)).round(4))

# %% [markdown]
# ## 5. Gradients, and ZeRO-1
#
# All weights but the experts are on every device, and each device has its own sequences. The loss of the batch is the
# mean of the losses of the devices. So each device takes the gradient of *its share*, its loss divided by $n$, and the
# gradient of the batch is the sum of these shares:
#
# $$g = \sum_i \nabla \frac{\mathrm{loss}_i}{n}$$
#
# To see numbers, take the smallest model there is: four weights $v$, examples $a$ with a target $q$ each, and as the
# loss the mean of $(a \cdot v - q)^2$.

# %%
draws = np.random.default_rng(1)
a, q, v = draws.normal(size=(n, 3, 4)), draws.normal(size=(n, 3)), np.zeros(4)  # three examples on each device
shares = np.zeros((n, 4))
for i in range(n):
    for example, target in zip(a[i], q[i], strict=True):
        shares[i] += 2 * (example @ v - target) * example / 3 / n
    print(f"device {i}: its share {shares[i].round(3)}")
together, targets = a.reshape(-1, 4), q.ravel()
same(psum(shares)[1], 2 * (together @ v - targets) @ together / len(targets))
print("sum, on each device:", psum(shares)[0].round(3))

# %% [markdown]
# *Adam* (lesson 10) keeps two numbers for each weight from step to step, its *moments*: a running mean $m$ of the
# slopes and one $s$ of their squares. At step $k$:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1) g$$
#
# $$s \leftarrow \beta_2 s + (1 - \beta_2) g^2$$
#
# $$v \leftarrow v - \mathrm{rate} \cdot \frac{m / (1 - \beta_1^k)}{\sqrt{s / (1 - \beta_2^k)}}$$
#
# Here on one device, for three steps.


# %%
def adam(v, m, s, g, k, rate=0.1, first=0.9, second=0.95):
    m, s = first * m + (1 - first) * g, second * s + (1 - second) * g**2
    return v - rate * (m / (1 - first**k)) / np.sqrt(s / (1 - second**k)), m, s


def share(v, i):
    return 2 * (a[i] @ v - q[i]) @ a[i] / 3 / n


one, m, s = v, np.zeros(4), np.zeros(4)
for k in (1, 2, 3):
    one, m, s = adam(one, m, s, share(one, 0) + share(one, 1), k)
print("weights", one.round(3), " m", m.round(3))
assert (one != v).all()

# %% [markdown]
# If every device did that, all of them would keep the same moments. That is a waste, and the moments are twice as large
# as the weights. *ZeRO-1* (Rajbhandari et al. 2019) shares them out. Each device keeps the moments of its part of the
# weights, gets the sum of the gradients of that part alone (a *reduce-scatter*), and updates it. Then all devices send
# their new weights to all others (an *all-gather*).

# %%
from routelaws.reference.parallel import all_gather, reduce_scatter

weights, m_part, s_part = np.stack([v] * n), np.zeros((n, 2)), np.zeros((n, 2))
for k in (1, 2, 3):
    summed = reduce_scatter(np.stack([share(weights[i], i) for i in range(n)]))  # [n, 2]
    mine = np.zeros((n, 2))
    for i in range(n):
        mine[i], m_part[i], s_part[i] = adam(weights[i, 2 * i : 2 * i + 2], m_part[i], s_part[i], summed[i], k)
    weights = all_gather(mine)
for i in range(n):
    print(f"device {i}: weights {weights[i].round(3)}, keeps of m {m_part[i].round(3)}")
    same(weights[i], one)
same(m_part.ravel(), m)

# %% [markdown]
# The weights are the same, and each device has kept half of the moments. Does it send more for that? No: summing and
# handing out everything, as `psum` does, *is* a reduce-scatter followed by an all-gather.
#
# Count the bytes for each parameter, with numbers of four bytes: the weight, its gradient, two moments.

# %%
same(all_gather(reduce_scatter(shares)), psum(shares))
for devices in (1, 2, 8, 64):
    plain = 4 + 4 + 2 * 4
    cut = 4 + 4 + 2 * 4 / devices
    print(f"{devices:3} devices: {plain} bytes on each if all keep everything, {cut:6.3f} with ZeRO-1")
    same(cut, 8 * (1 + 1 / devices))

# %% [markdown]
# ## 6. The mesh
#
# A *pod* is a machine of many devices with fast links between them. A model on a pod does all of this at once. The
# devices are arranged in a *mesh* with three axes:
#
# - **data**: copies of everything, each with other sequences;
# - **expert**: devices that have different experts, and other sequences as well;
# - **model**: devices that have different heads of attention and different columns of each FFN.
#
# The all-to-all goes along `expert`, within a row of the mesh. Gradients are summed over all devices that have a copy:
# those of experts over `data`, those of all other weights over `data` and `expert`. Moments are shared out among the
# same devices. Here is the mesh `data=2,expert=2`, a batch of eight sequences, and four experts.

# %%
from routelaws.reference.parallel import part

mesh = np.arange(4).reshape(2, 2)  # [data, expert]: the numbers of the devices
moments = np.zeros((4, 4 + 1))  # [device, four experts and all the rest]: what share of their moments it keeps
for row in range(2):
    for column in range(2):
        device = mesh[row, column]
        sequences, experts_here = part(np.arange(8), device, 4), part(np.arange(4), column, 2)
        copies = mesh[:, column]  # the devices with the same experts
        moments[device, experts_here], moments[device, 4] = 1 / len(copies), 1 / mesh.size
        print(f"device {device}: sequences {sequences}, experts {experts_here}, sums their gradients with {copies}")
print(moments)
same(moments.sum(axis=0), np.ones(5))

# %% [markdown]
# The last array says who keeps which moments: a row for each device, a column for each expert and one for all other
# weights. Each column adds up to 1, so nothing is kept twice.

# %% [markdown]
# ## 7. Devices that your computer makes up
#
# JAX can treat the processor of a laptop as several devices. They share its cores, so nothing becomes faster. But the
# program that runs on them is the one that runs on a pod. The number has to be set before JAX is first used. (In a
# terminal the variable `JAX_NUM_CPU_DEVICES` does the same.)
#
# Under `jax.shard_map` a function sees what one device holds. The twins of [`parallel.py`](../accelerated/parallel.py)
# have an argument `axis_name` for that. Here is the layer of section 2, compiled for two devices.

# %%
needs("jax")
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
from routelaws.accelerated import parallel as fast

pair = jax.make_mesh((2,), ("expert",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
rows = jax.P("expert")


def layer(up, down, x, expert, gate):
    return fast.routed_ffn_on_devices({"up": up, "down": down}, x, expert, gate, axis_name="expert").output


over_two = jax.jit(jax.shard_map(layer, mesh=pair, in_specs=rows, out_specs=rows, check_vma=False))
found = over_two(up, down, text, routing.expert, routing.gate)
same(found, alone)
for shard in found.addressable_shards:
    print(f"device {shard.device.id} has rows {np.asarray(shard.data, dtype=float).round(3).tolist()}")

# %% [markdown]
# And the loss of a whole model, on the mesh of section 6. The reference has one device. So with the groups of each
# device its loss is the mean over the losses of four small batches, and with the global group it is that of the whole
# batch. The router is S-BASE.

# %%
from routelaws.accelerated import transformer as fast_transformer
from routelaws.accelerated.configuration import ModelConfig as FastConfig
from routelaws.accelerated.training.mesh import Layout
from routelaws.reference import transformer
from routelaws.reference.configuration import ModelConfig

sizes = {"vocab_size": 32, "d_model": 16, "blocks": 2, "heads": 2, "router": "sinkhorn", "experts": 4}
params = transformer.init(np.random.default_rng(2), ModelConfig(**sizes))
tokens = 4 * np.arange(8)[:, None] + np.random.default_rng(3).integers(0, 4, size=(8, 9))  # to each its own words


def loss_on_mesh(params, tokens, layout):
    def on_device(params, tokens):
        result = fast_transformer.loss(params, tokens, FastConfig(**sizes), training=True, spread=layout.spread)
        return jax.lax.pmean(result.total, ("data", "expert"))

    specs = (layout.params, jax.P(("data", "expert")))
    whole = jax.shard_map(on_device, mesh=layout.mesh, in_specs=specs, out_specs=jax.P(), check_vma=False)
    return whole(params, tokens)


# %%
losses = {}
for group, pieces in (("shard", 4), ("global", 1)):
    layout = Layout(FastConfig(**sizes), "data=2,expert=2", group, params)
    found = jax.jit(loss_on_mesh, static_argnames="layout")(params, tokens, layout=layout)
    batches = tokens.reshape(pieces, -1, 9)
    losses[group] = np.mean([transformer.loss(params, each, ModelConfig(**sizes)).total for each in batches])
    same(found, losses[group])
    print(f"{group:6}: {losses[group]:.5f} nats for each token by the reference, {float(found):.5f} on four devices")
assert abs(losses["shard"] - losses["global"]) > 1e-3

# %% [markdown]
# Two groupings are two models: their losses differ, and not by rounding. So a result should say which was used.
#
# ## 8. Who holds what
#
# A [`Layout`](../accelerated/training/mesh.py) says for each array along which axes it is cut. Read from it how many
# numbers of each array are on one device, and of its moments. In section 6 the moments added up to one whole, so that a
# device has a quarter of them.

# %%
sharding, of_moments = layout.sharding(layout.params), layout.sharding(layout.moments)
total, kept = 0, 0
for (path, weight), here, its in zip(
    jax.tree_util.tree_leaves_with_path(params), *map(jax.tree.leaves, (sharding, of_moments)), strict=True
):
    name, numbers = jax.tree_util.keystr(path, simple=True, separator="/"), np.prod(here.shard_shape(weight.shape))
    moment = np.prod(its.shard_shape(weight.shape))
    total, kept = total + weight.size, kept + moment
    if name.startswith(("routed_ffn", "dense_ffn", "embedding")):
        print(f"{name:18} {weight.size:5} numbers; on a device {numbers:5}, and {moment:4} of each moment")
print(f"all {total} numbers; {kept} of each moment on a device")
assert kept == total / 4

# %% [markdown]
# ## 9. Stopped, and resumed on another mesh
#
# Now a real run, by the code that `routelaws train` runs. It learns to add: the text is made of lines with a sum in
# each. With the global group the mesh changes nothing but the order of sums, so the run may go on on any mesh.

# %%
needs("optax", "train")
import signal
import tempfile
from pathlib import Path

from routelaws.accelerated.training.config import from_mapping
from routelaws.accelerated.training.corpus import read_corpus
from routelaws.accelerated.training.loop import Run
from routelaws.accelerated.training.stopping import Resumable, stoppable
from routelaws.accelerated.training.tokens import prepare_tokens

# %%
workplace = tempfile.TemporaryDirectory()  # goes when the lesson ends
folder = Path(workplace.name)
pairs = np.random.default_rng(4).integers(0, 100, size=(4000, 2))
(folder / "sums.txt").write_text("".join(f"{a} plus {b} is {a + b}.\n" for a, b in pairs))
corpus = prepare_tokens(read_corpus([str(folder / "sums.txt")]), 300, folder / "tokens", tell=lambda line: None)
fields = sizes | {"vocab_size": 300, "sequence_length": 16, "batch_size": 16, "balancing_group": "global"}
fields |= {"steps": 32, "steps_per_call": 8, "evaluations": 4, "evaluation_tokens": 2048, "learning_rate": 0.01}
print(len(pairs), "lines, the first:", (folder / "sums.txt").read_text().splitlines()[0])
assert corpus.vocab_size == 300


# %% [markdown]
# A machine that is needed for something else sends the run a signal, SIGTERM. The run ends the steps at hand, writes
# a *checkpoint* (weights, moments, the position in the text) and says that it can be resumed. We send the signal
# ourselves after step 16, and go on with another mesh, `expert=4`. A second run, on `data=4`, is left in peace.


# %%
def train(name, mesh, stop_after=None):
    """Train in a folder, as far as that goes, and return {step: validation loss} of the table."""

    def watch(kind, **told):
        if kind == "step" and told["step"] == stop_after:
            signal.raise_signal(signal.SIGTERM)
        if kind == "say":
            print(told["line"].removeprefix(f"{folder}/"))

    run = Run(from_mapping(fields | {"mesh": mesh}, "lesson 17"), folder / name, corpus, watch=watch)
    try:
        with stoppable():
            rows = run.train()
    except Resumable as stopped:
        return print(str(stopped).removeprefix(f"{folder}/"))
    return {int(row["step"]): float(row["loss_validation"]) for row in rows}


# %%
train("stopped", "data=2,expert=2", stop_after=16)
resumed = train("stopped", "expert=4")
undisturbed = train("undisturbed", "data=4")
assert list(resumed) == list(undisturbed) == [8, 16, 24, 32]
same(list(resumed.values()), list(undisturbed.values()), "mesh.steps.loss", scale=1.0)

# %% tags=["volatile"]
for step, loss in resumed.items():
    mesh = "data=2,expert=2" if step <= 16 else "expert=4"
    print(f"step {step}: {loss:.6f} on {mesh:15}, undisturbed on data=4 {undisturbed[step]:.6f}")

# %% [markdown]
# The losses agree to the digits of 32 bits. The same is done by a command, here with devices that the computer makes
# up; on a pod the same flags stand in its job file ([docs/scale.md](../docs/scale.md)):
#
#     JAX_NUM_CPU_DEVICES=4 routelaws train --router sinkhorn --experts 4 --mesh data=2,expert=2 --out runs/spread

# %% [markdown]
# ## 10. A model that fits nowhere
#
# The largest model of the paper that these lessons follow has 512 experts in every second block. Does it fit on one
# device? On how many?

# %%
from routelaws.accelerated.commands import plan_mesh
from routelaws.accelerated.mesh_plan import MeshShape, plan_device

choices = {"router": "sinkhorn", "experts": 512, "dtype": "bfloat16"}
largest = from_mapping(plan_mesh.fields_of_size("1.3B") | choices, "lesson 17")
b, S, d, L, E, V = largest.batch_size, largest.sequence_length, 2048, 24, 512, largest.model.vocab_size
P = largest.accounting().total_parameters
of_experts = L // 2 * E * 8 * d**2
print(f"{P / 1e9:.0f} billion parameters, {of_experts / P:.1%} of them in experts: {16 * P / 1e12:.1f} TB in one place")
plan = plan_device(largest.model, MeshShape(data=1, expert=256, model=2), b, S, "bfloat16")
halved = L * 5 * d**2 + L // 2 * 8 * d**2  # attention and the other FFNs, cut along the axis model
whole = L * 4 * d + L // 2 * d * E + V * d + 2 * d  # norms, routers, embedding: on every device
same(plan.parameters, 4 * (of_experts // 512 + halved // 2 + whole))
same(plan.optimizer, 8 * (of_experts // 512 + (halved // 2 + whole) // 256))
print(f"on each of 512 devices {plan.parameters / 1e9:.2f} GB of weights, {plan.optimizer / 1e9:.2f} GB of moments")

# %% [markdown]
# An expert has no copy on this mesh, and so there is nobody to share its moments with. The gradients of all other
# weights are summed over 256 devices, and each of these keeps one part in 256 of their moments.
#
# What a device sends to the experts in a step follows from section 3: $C$ slots for each expert of a routed block, of
# $d$ numbers with two bytes each, there and back, and once more there and back for the gradients.

# %%
tokens_here = b * S // 256
C = expert_capacity(tokens_here, E, 1, largest.model.capacity_factor)
crossing = L // 2 * E * C * d * 2 * 255 / 256
same(plan.all_to_all, round(4 * crossing))
print(f"{tokens_here} tokens on a device, {C} slots for each expert: {plan.all_to_all / 1e9:.2f} GB sent in a step")

# %% [markdown]
# `routelaws plan-mesh` does these sums for every mesh and names the best. It counts *activations* as well: what is kept
# of the way forward until the gradient is computed. To save memory a block can keep its input alone, and be computed a
# second time when its gradient is due. It is then said to be *rematerialised*.

# %%
given = "--size 1.3B --router sinkhorn --experts 512 --dtype bfloat16 --devices 512 --memory 32GB --top 3"
plan_mesh.main(given.split())
assert plan.memory() < 32e9

# %% tags=["picture"]
meshes = [MeshShape(data=1, expert=expert, model=2) for expert in (32, 64, 128, 256)]
plans = {mesh.devices(): plan_device(largest.model, mesh, b, S, "bfloat16") for mesh in meshes}


def draw(axes):
    below = np.zeros(len(plans))
    names = {"parameters": "weights", "gradients": "gradients", "optimizer": "moments"}
    for i, (name, label) in enumerate((names | {"activations_recomputed": "activations"}).items()):
        heights = np.array([getattr(each, name) / 1e9 for each in plans.values()])
        axes.bar(range(len(plans)), heights, 0.6, bottom=below, color=COLOURS[i], label=label)
        below += heights
    axes.axhline(32, color="#4a4a4a", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(plans)), [str(devices) for devices in plans])
    axes.set(xlabel="devices, two of them along the axis model", ylabel="GB on each device")
    axes.legend(loc="upper right")


# %% tags=["picture"]
figure(
    draw,
    "Memory of each device by the number of devices, for the largest model of the paper, with all blocks "
    "rematerialised. The dashed line is a device of 32 GB.",
)

# %% [markdown]
# ## Exercises
#
# Answers, with the code that checks them: [`answers/17_from_laptop_to_pod.py`](answers/17_from_laptop_to_pod.py).
#
# 1. Move "sat" and "down" to device 0, and "the" and "cat" to device 1. Which tokens travel now? Does the result of any
#    token change, with slots for all? And who is dropped with $c = 1$, by either group?
# 2. From how many devices on are the moments of a device smaller than its weights?
# 3. Somebody forgets to divide the loss of a device by $n$. What is wrong with the gradient? How far off are the
#    weights after a step of Adam? What would show the mistake?
# 4. A mesh `data=2,expert=4` and eight experts: which devices have expert 5, and who sums its gradient? Who sums that
#    of an attention matrix?
# 5. Does the largest model fit on 256 devices of 32 GB? Ask `plan-mesh`.
