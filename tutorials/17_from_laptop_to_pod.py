# %% [markdown]
# # Lesson 17. From laptop to pod
#
# **You will** spread a routed layer over two devices and send tokens between them by hand. You will see what changes
# when each device balances its own tokens, and divide the optimizer's state among devices. Then you will train one
# model on four simulated devices, stop it, and resume with another arrangement of the devices. At the end you plan the
# memory of a model that does not fit on one device. At each step we compare with one device.
#
# **You need** NumPy and lessons 1 and 4. Section 7 and the later sections need
# `pip install 'routelaws[train]'`. Pictures need matplotlib.
#
# **Files** [`parallel.py`](../reference/parallel.py), [`experts.py`](../reference/experts.py), and in the fast twin
# [`mesh.py`](../accelerated/training/devices/mesh.py), [`mesh_plan.py`](../accelerated/training/devices/mesh_plan.py).

# %% [markdown]
# ## 1. Two devices
#
# A *device* is a processor with its own memory. A large model has more experts than one device can hold, so we spread
# the experts over devices. We also spread the tokens. So a token and its expert may be on different devices.
#
# We take a layer as in lesson 1: four tokens, two experts, gates from a softmax. First we run it on one device and drop
# no token. (The helper `same` stops the lesson unless two results agree up to rounding; `figure` shows a picture.)

# %%
import numpy as np

from lesson import COLOURS, figure, needs, same
from routelaws.reference.experts import expert_capacity, expert_ffn, routed_ffn
from routelaws.reference.routers.top_k import switch_router

words = ["the", "cat", "sat", "down"]
text = np.array(
    [[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 0.5]]
)  # a row for each token
w = np.array([[1.0, -1.0], [0.0, 1.0]])
up = [[[1, 0, 1], [0, 1, 1]], [[0, 1, -1], [1, 0, 1]]]
down = [[[1, 0], [0, 1], [1, 1]], [[0, 1], [1, 0], [0.5, 0.5]]]
up, down = np.array(up, float), np.array(down, float)  # [E, d, f] and [E, f, d]
routing = switch_router(text @ w)
alone = routed_ffn({"up": up, "down": down}, text, routing.expert, routing.gate).output
for word, (e,), row in zip(words, routing.expert, alone, strict=True):
    print(f"{word:5} expert {e}  result {row.round(3)}")
assert list(routing.expert[:, 0]) == [0, 0, 1, 0]

# %% [markdown]
# Now there are $n = 2$ devices. From here on $T$ counts the tokens of one device: device $i$ has $T = 2$ of the tokens
# and $E / n = 1$ of the experts. In NumPy, the first axis of an array is the device: device $i$ holds `x[i]`.

# %%
n, T, E, d, f = 2, 2, 2, 2, 3
x, expert = text.reshape(n, T, d), routing.expert.reshape(n, T)
gate = routing.gate.reshape(n, T)
ups, downs = up.reshape(n, E // n, d, f), down.reshape(n, E // n, f, d)
for i in range(n):
    for t in range(T):
        e, word = expert[i, t], words[i * T + t]
        where = "stays here" if e == i else f"has to go to device {e}"
        print(f"device {i}: {word:5} {x[i, t]} wants expert {e}: {where}")
assert (expert != np.arange(n)[:, None]).sum() == 1

# %% [markdown]
# ## 2. All-to-all by hand
#
# Each device fills a *buffer*. It has a row of slots for each of the $E$ experts, including experts on other devices. A
# row has $C$ slots (the capacity of lesson 1). Here $C = T$, so no token is dropped. The rows form $n$ *parts*: part
# $j$ has the rows of the experts on device $j$. Below, an empty slot is `-`, and its numbers are 0.

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
for i, e in np.ndindex(n, E):
    row = f"{holds[i, e].tolist()} {buffers[i, e].tolist()}"
    print(f"device {i}, for expert {e}: {row}")
assert (holds != "-").sum() == n * T

# %% [markdown]
# Then all devices send at once: device $j$ sends its part $i$ to device $i$, which keeps the parts in the order of the
# senders. Let $s_{ji}$ be part $i$ on device $j$ before, and $r_{ij}$ part $j$ on device $i$ afterwards:
#
# $$r_{ij} = s_{ji}$$
#
# Each device sends a part to every device. So this is called *all-to-all*. (Part $i$ of device $i$ stays there.)

# %%
own = E // n  # experts on each device, and so rows in each part
arrived = np.zeros(buffers.shape)
for i in range(n):
    for j in range(n):
        sent = buffers[j, i * own : (i + 1) * own]  # part i on device j
        arrived[i, j * own : (j + 1) * own] = sent
        print(f"device {i}, from device {j}: {sent.reshape(own * C, d).tolist()}")
same(arrived[0, 1, 0], x[1, 1])  # "down" is with expert 0 now

# %% [markdown]
# For all devices at once, this swaps two axes: the axis of devices and the axis of parts.
# [`all_to_all`](../reference/parallel.py) does the same. A second all-to-all brings everything back.

# %%
from routelaws.reference.parallel import all_to_all

same(buffers.reshape(n, n, own, C, d).swapaxes(0, 1).reshape(buffers.shape), arrived)
same(all_to_all(buffers), arrived)
same(all_to_all(all_to_all(buffers)), buffers)


# %% tags=["picture"]
def draw(*panels):
    colours = dict(zip(words, (COLOURS[e] for e in expert.ravel()), strict=True))
    sides = ("before", holds), ("after all-to-all", all_to_all(holds))
    for axes, (title, held) in zip(panels, sides, strict=True):
        for (i, s), word in np.ndenumerate(held.reshape(n, E * C)):
            box = {
                "left": s - 0.47,
                "height": 0.6,
                "color": colours.get(word, "#eeeeee"),
            }
            axes.barh(i, 0.94, **box)
            ink = {"color": "#666666" if word == "-" else "white"}
            axes.text(s, i, word.replace("-", "empty"), ha="center", va="center", **ink)
        axes.axvline(C * own - 0.5, color="#4a4a4a", linewidth=1)
        axes.set(xlabel="slot of the buffer, from 0", ylabel="device", title=title)
        axes.set(xlim=(-0.6, 3.6), ylim=(1.5, -0.5))
        axes.set(xticks=range(E * C), yticks=range(n))
        axes.grid(False)


# %% tags=["picture"]
figure(
    draw,
    "The buffers of two devices before and after all-to-all. The line is between the "
    "two parts of each buffer. Blue tokens want expert 0, orange tokens expert 1: "
    "afterwards device 0 has all blue tokens, device 1 all orange tokens.",
    panels=2,
    height=2.4,
)

# %% [markdown]
# Now every device runs its own expert on the rows that arrived. A second all-to-all sends the results back to their
# original slots. Each token takes its result from its slot, times its gate.

# %%
outputs = np.zeros(buffers.shape)
for i in range(n):
    for row in range(E):  # from each device in turn, a row for each expert of device i
        e = row % own
        outputs[i, row] = expert_ffn(ups[i, e], downs[i, e], arrived[i, row])
back = all_to_all(outputs)  # row e is from expert e again
y = np.zeros(x.shape)
for i in range(n):
    for t in range(T):
        y[i, t] = gate[i, t] * back[i, expert[i, t], slot[i, t]]
        print(f"device {i}: {words[i * T + t]:5} {y[i, t].round(3)}")
same(y.reshape(n * T, d), alone)

# %% [markdown]
# The numbers are the same as on one device. [`routed_ffn_on_devices`](../reference/parallel.py) is the whole layer.
# (The reference needs a last axis for the experts of a token, since a token may have several; `[..., None]` adds it.)

# %%
from routelaws.reference.parallel import routed_ffn_on_devices

experts = {"up": ups, "down": downs}
spread = routed_ffn_on_devices(experts, x, expert[..., None], gate[..., None])
same(spread.output, y)

# %% [markdown]
# ## 3. What travels
#
# Empty slots also travel. So the size of a message does not depend on the router: it is known before the model runs.
# Let each device have $T$ tokens and one expert, so $E = n$. With the capacity factor $c$, a part has
# $C = \lceil c T / E \rceil$ slots. All parts but one leave the device:
#
# $$\mathrm{slots} = (n - 1) \left\lceil \frac{c T}{n} \right\rceil$$
#
# For many devices this is near $c T$. The alternative is to bring all experts to the tokens: each device fetches
# $n - 1$ experts. An expert is two matrices of $d \times f$ numbers (lesson 1); with the usual $f = 4 d$ this is
# $8 d^2$ numbers. A number has four bytes, and an MB is a million bytes.

# %%
many, width, c = 4096, 1024, 1.25  # tokens of a device, width d, capacity factor
for devices in (2, 8, 32, 128):
    slots = (devices - 1) * expert_capacity(many, devices, 1, c)
    tokens, fetched = 4 * width * slots / 1e6, 4 * 8 * width**2 * (devices - 1) / 1e6
    print(f"{devices:4} devices: tokens {tokens:5.1f} MB, experts {fetched:7.1f} MB")
    assert slots < c * many and tokens < fetched
print(f"always below: tokens {4 * width * c * many / 1e6:5.1f} MB")

# %% [markdown]
# The tokens that a device sends stay below a limit, for any number of devices. The experts that it would fetch grow
# with the number of devices. So the tokens travel. They travel twice in each routed layer: to the experts and back.

# %% [markdown]
# ## 4. Which tokens share a queue and a balance?
#
# Now let $c = 1$, so that there are too few slots. The dropped tokens depend on which tokens share a queue. There are
# two choices, and they give two different layers:
#
# - *shard*: the tokens of each device form a group, and each group has its own $\lceil c T / E \rceil$ slots at each
#   expert;
# - *global*: the tokens of all devices form one group. They queue in the order of the devices, and have
#   $\lceil c n T / E \rceil$ slots at each expert.
#
# For both choices, the code lists the tokens that the layer over devices drops. It compares them with the layer on one
# device, which gets the same groups one after the other.

# %%
for group in ("shard", "global"):
    slots = expert_capacity(T if group == "shard" else n * T, E, 1, 1.0)
    arguments = experts, x, expert[..., None], gate[..., None], 1.0
    spread = routed_ffn_on_devices(*arguments, group=group).output.reshape(n * T, d)
    dropped = [words[t] for t in range(n * T) if not spread[t].any()]
    print(f"{group:6}: {slots} slots at each expert for each group; dropped: {dropped}")
    pieces, parts = n if group == "shard" else 1, []  # now on one device
    whole = text, routing.expert, routing.gate
    for cut in zip(*(np.split(values, pieces) for values in whole), strict=True):
        parts.append(routed_ffn({"up": up, "down": down}, *cut, 1.0).output)
    same(spread, np.concatenate(parts))

# %% [markdown]
# With the global group, "down" comes too late. With a group for each device, "cat" comes too late. In both cases the
# layer over devices equals the layer on one device *with the same groups*. The tests of this project check this for
# every router.
#
# Routers that balance (lesson 4) can also use either kind of group. Take eight devices with sixteen tokens each, and
# four experts. The text of each device has its own topic, so tokens on different devices prefer different experts. How
# well do the experts fit if we balance each device, or each pair of devices, and so on? We measure the mean logit of
# the tokens for their experts. `balanced_assignment` finds the best choice in which each expert gets the same number of
# tokens. It finds the same choice as the exhaustive search of lesson 4, but faster (lesson 3).

# %%
from routelaws.reference.routers.base import balanced_assignment

draws = np.random.default_rng(0)
topics = 1.5 * draws.normal(size=(8, 1, 4))  # what all tokens of a device prefer
scores = (topics + draws.normal(size=(8, 16, 4))).reshape(8 * 16, 4)  # the logits
fits = {}
for pieces in (8, 4, 2, 1):
    groups, group = np.split(scores, pieces), len(scores) // pieces
    total = sum(balanced_assignment(each).objective for each in groups)
    fits[group] = total / len(scores)
    print(f"balance in groups of {group:3} tokens: mean logit {fits[group]:.3f}")
best = scores.max(axis=1).mean()
print(f"no balance at all:               mean logit {best:.3f}")
assert list(fits.values()) == sorted(fits.values()) and fits[len(scores)] < best

# %% [markdown]
# Larger groups never fit worse. The reason: a choice that is balanced within each small group is also balanced within
# the large group. So the large group has all choices of the small groups, and more. But large groups need more
# messages. How many messages? Sinkhorn's algorithm (lesson 4) needs few. Its plan is $\Pi_{te} = \exp(z_{te} + a_t +
# g_e)$. The row step, for $a_t$, makes each row add up to 1 over the number of tokens. It is a softmax of $z + g$,
# divided by that number. A device can do this for its own tokens. The column step, for $g_e$, needs the mass that each
# expert gets from *all* devices. Let $\mathrm{mass}_{ie}$ be the mass from device $i$:
#
# $$g_e \leftarrow g_e - \log \Bigl( E \sum_i \mathrm{mass}_{ie} \Bigr)$$
#
# [`psum`](../reference/parallel.py) gives each device this sum. A device only has to send four numbers.

# %%
from routelaws.reference.notation import softmax
from routelaws.reference.parallel import psum
from routelaws.reference.routers.sinkhorn import sinkhorn_plan

z = scores.reshape(8, 16, 4)  # [devices, tokens, E]
g = np.zeros(4)  # g_e; every device has the same
for _ in range(20):
    mass = np.zeros((8, 4))
    for i in range(8):
        mass[i] = softmax(z[i] + g).sum(axis=0) / len(scores)
    g = g - np.log(4 * psum(mass)[0])
plan = softmax(z + g) / len(scores)
same(plan.reshape(-1, 4), sinkhorn_plan(scores, num_sweeps=20).plan)
print("numbers that a device sends in a sweep:", mass[0].size, end="  ")
print("loads:", plan.sum(axis=(0, 1)).round(4))

# %% [markdown]
# ## 5. Gradients, and ZeRO-1
#
# Training goes in steps. A step takes a *batch* of token sequences and computes its mean loss (lesson 4). It also
# computes the *gradient*: how fast the loss changes with each weight. Then an *optimizer* moves the weights. Each of
# several devices has its own sequences and, for now, a copy of all weights except the experts. The loss of the batch is
# the mean loss of the devices. So each device takes the gradient of *its share*, its loss divided by $n$. The gradient
# of the batch is the sum of these shares:
#
# $$g = \sum_i \nabla \frac{\mathrm{loss}_i}{n}$$
#
# For an example, take a tiny model: four weights $v$, and examples $a$ with a target $q$ each. The loss is the mean of
# $(a \cdot v - q)^2$, and its gradient is the mean of $2 (a \cdot v - q) a$.

# %%
draws = np.random.default_rng(1)
# three examples on each device
a, q, v = draws.normal(size=(n, 3, 4)), draws.normal(size=(n, 3)), np.zeros(4)


def share(v, i):
    total = np.zeros(4)
    for example, target in zip(a[i], q[i], strict=True):
        total += 2 * (example @ v - target) * example
    return total / 3 / n


shares = np.stack([share(v, i) for i in range(n)])
print("shares of the devices:", *shares.round(3))
print("sum, on each device:  ", psum(shares)[0].round(3))
together, targets = a.reshape(-1, 4), q.ravel()  # the whole batch on one device
same(psum(shares)[1], 2 * (together @ v - targets) @ together / len(targets))

# %% [markdown]
# The optimizer here is *Adam*. For each weight it keeps two numbers from step to step, the *moments*: a running mean
# $m$ of the gradients, and a running mean $s$ of their squares. With $\beta_1$ and $\beta_2$ near 1, these means change
# slowly. At step $k$:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1) g$$
#
# $$s \leftarrow \beta_2 s + (1 - \beta_2) g^2$$
#
# $$v \leftarrow v - \mathrm{rate} \cdot \frac{m / (1 - \beta_1^k)}{\sqrt{s / (1 - \beta_2^k)}}$$
#
# Here are three steps on one device.


# %%
def adam(v, m, s, g, k, rate=0.1, beta_1=0.9, beta_2=0.95):
    m = beta_1 * m + (1 - beta_1) * g
    s = beta_2 * s + (1 - beta_2) * g**2
    return v - rate * (m / (1 - beta_1**k)) / np.sqrt(s / (1 - beta_2**k)), m, s


one, m, s = v, np.zeros(4), np.zeros(4)
for k in (1, 2, 3):
    one, m, s = adam(one, m, s, share(one, 0) + share(one, 1), k)
print("weights", one.round(3), " m", m.round(3))
assert (one != v).all()

# %% [markdown]
# If every device did this, all devices would keep the same moments. That wastes memory, since the moments are twice as
# large as the weights. *ZeRO-1* (Rajbhandari et al. 2019) divides them among the devices. Each device keeps the moments
# of its part of the weights. It gets the sum of the gradients of this part only (a *reduce-scatter*), and updates the
# part. Then all devices send their new weights to all others (an *all-gather*).

# %%
from routelaws.reference.parallel import all_gather, reduce_scatter

weights, m_part, s_part = np.stack([v] * n), np.zeros((n, 2)), np.zeros((n, 2))
for k in (1, 2, 3):
    # [n, 2]
    summed = reduce_scatter(np.stack([share(weights[i], i) for i in range(n)]))
    mine = np.zeros((n, 2))
    for i in range(n):
        old = weights[i, 2 * i : 2 * i + 2], m_part[i], s_part[i]
        mine[i], m_part[i], s_part[i] = adam(*old, summed[i], k)
    weights = all_gather(mine)
for i in range(n):
    print(f"device {i}: weights {weights[i].round(3)}, part of m {m_part[i].round(3)}")
    same(weights[i], one)
same(m_part.ravel(), m)
same(all_gather(reduce_scatter(shares)), psum(shares))

# %% [markdown]
# The weights are the same, and each device keeps half of the moments. Does it send more? No: the last line of the code
# shows that a `psum` *is* a reduce-scatter followed by an all-gather. Each number takes four bytes, so without ZeRO-1 a
# weight, its gradient and its moments take sixteen bytes of a device. With ZeRO-1 the number of bytes is
#
# $$4 + 4 + \frac{2 \cdot 4}{n}$$

# %% [markdown]
# ## 6. The mesh
#
# A *pod* is a machine of many devices with fast links between them. A model on a pod does all of this at once. Its
# devices form a *mesh* with three axes:
#
# - **data**: devices with the same weights and different sequences;
# - **expert**: devices with different experts, and also different sequences;
# - **model**: devices with the same sequences, but different heads of attention and different hidden numbers of each
#   feed-forward network.
#
# First the axis `model`. GELU acts on each hidden number separately (lesson 1). So a device may hold some columns of
# $U$ and the same rows of $D$, and a `psum` adds up the results of the devices:
#
# $$\mathrm{GELU}(x U) D = \sum_j \mathrm{GELU}(x U_j) D_j$$
#
# Here we spread expert 0, with $f = 3$ hidden numbers, over three devices; the gate comes afterwards.

# %%
# [devices, tokens, d]
pieces = np.stack([expert_ffn(up[0][:, [j]], down[0][[j]], text) for j in range(f)])
print('what the devices get for "the":', *pieces[:, 0].round(3), end="  ")
print("sum:", psum(pieces)[0, 0].round(3))
same(psum(pieces)[0], expert_ffn(up[0], down[0], text))

# %% [markdown]
# Now the other two axes, on the mesh `data=2,expert=2` with a batch of eight sequences and four experts. The all-to-all
# goes along `expert`: tokens never leave their row of the mesh. The devices with a copy of a weight add up its
# gradient. For an expert, these are the devices along `data`, since the expert already sees all tokens of its row of
# the mesh. For all other weights, these are the devices along `data` and `expert`. The moments are divided among the
# same devices. `part(rows, i, n)` is part $i$ of $n$ of an array.

# %%
from routelaws.reference.parallel import part

mesh = np.arange(4).reshape(2, 2)  # [data, expert]: the numbers of the devices
# [device, four experts and all the rest]: what share of their moments it keeps
moments = np.zeros((4, 4 + 1))
for row in range(2):
    for column in range(2):
        device = mesh[row, column]
        sequences = part(np.arange(8), device, 4)
        experts_here = part(np.arange(4), column, 2)
        copies = mesh[:, column]  # the devices with the same experts
        moments[device, experts_here] = 1 / len(copies)
        moments[device, 4] = 1 / mesh.size
        print(
            f"device {device}: sequences {sequences}, experts {experts_here}", end=", "
        )
        print(f"sums their gradients with {copies}")
print(f"moments of each expert, and of all other weights:\n{moments}")
same(moments.sum(axis=0), np.ones(5))

# %% [markdown]
# The last array shows which share of the moments a device keeps. It has a row for each device, a column for each
# expert, and one column for all other weights. Each column adds up to 1, so no moment is stored twice.

# %% [markdown]
# ## 7. Simulated devices
#
# JAX can treat the processor of a laptop as several devices. They share its cores, so nothing becomes faster. But the
# same program runs on a pod. Set the number of devices before the first use of JAX. (In a terminal the variable
# `JAX_NUM_CPU_DEVICES` does the same.)
#
# `jax.shard_map` takes a function of the arrays on *one* device, and returns a function of whole arrays. `in_specs` and
# `out_specs` name the axis of the mesh that splits the arguments and the result. Inside the function, devices exchange
# rows along a named axis; the functions of [`parallel.py`](../accelerated/parallel.py) take this name as the argument
# `axis_name`. Here is the layer of section 4, compiled for two devices, with the groups *shard* and *global*.

# %%
needs("train")
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
from routelaws.accelerated import parallel as fast

kind = (jax.sharding.AxisType.Auto,)
pair = jax.make_mesh((2,), ("expert",), kind, devices=jax.devices()[:2])
rows = jax.P("expert")  # the first axis (tokens or experts) is cut along `expert`


def layer(group):
    def on_device(up, down, x, expert, gate):
        arguments = {"up": up, "down": down}, x, expert, gate, 1.0
        options = {"group": group, "axis_name": "expert"}
        return fast.routed_ffn_on_devices(*arguments, **options).output

    return jax.jit(jax.shard_map(on_device, mesh=pair, in_specs=rows, out_specs=rows))


# %%
for group in ("shard", "global"):
    found = layer(group)(up, down, text, routing.expert, routing.gate)
    for shard in found.addressable_shards:  # what is on each device
        here = np.asarray(shard.data, dtype=float).round(3).tolist()
        print(f"{group:6}: device {shard.device.id} has {here}")
    arguments = experts, x, expert[..., None], gate[..., None], 1.0
    by_reference = routed_ffn_on_devices(*arguments, group=group).output
    same(found, by_reference.reshape(n * T, d))

# %% [markdown]
# ## 8. Stopped, and resumed on another mesh
#
# Now train a whole model (lesson 9) with the code of `routelaws train`. The model has two blocks, with S-BASE and four
# experts in the second block. Each line of its text has a sum of two numbers. With the global group, the mesh changes
# only the order of additions. So a stopped run can resume on any mesh, and its losses equal the losses of a run on one
# device, up to rounding. [`mesh.py`](../accelerated/training/devices/mesh.py) distributes a step over the mesh as in
# sections 2, 5 and 6.

# %%
import signal
import tempfile
from pathlib import Path

from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.loop import Run
from routelaws.accelerated.training.stopping import Resumable, stoppable
from routelaws.accelerated.training.text.corpus import read_corpus
from routelaws.accelerated.training.text.tokens import prepare_tokens

# %%
workplace = tempfile.TemporaryDirectory()  # goes when the lesson ends
folder = Path(workplace.name)
pairs = np.random.default_rng(4).integers(0, 100, size=(4000, 2))
lines = [f"{a} plus {b} is {a + b}.\n" for a, b in pairs]
(folder / "sums.txt").write_text("".join(lines))
text_files = read_corpus([str(folder / "sums.txt")])
# a vocabulary of 300 tokens
corpus = prepare_tokens(text_files, 300, folder / "tokens", tell=lambda line: None)
fields = {"vocab_size": 300, "d_model": 16, "blocks": 2, "heads": 2}
fields |= {"router": "sinkhorn", "experts": 4, "sequence_length": 16}
fields |= {"batch_size": 16, "learning_rate": 0.01, "steps": 32, "steps_per_call": 8}
fields |= {"evaluations": 4, "evaluation_tokens": 2048}
print(len(pairs), "lines, the first:", lines[0].strip())
assert corpus.vocab_size == 300


# %% [markdown]
# If a machine is needed for something else, the run gets a signal, SIGTERM. The run finishes its current steps, writes
# a *checkpoint* (weights, moments, the position in the text) and reports that you can resume it. A run reports each
# event to the function `watch`. Our `watch` sends the signal after a chosen step, and prints the reports of the run.


# %%
def train(name, mesh=None, stop_after=None):
    """Train in a folder, and return {step: validation loss}; None after a stop."""

    def watch(kind, **told):
        if kind == "step" and told["step"] == stop_after:
            signal.raise_signal(signal.SIGTERM)
        if kind == "say":
            print(told["line"].removeprefix(f"{folder}/"))

    over = {"mesh": mesh, "balancing_group": "global"} if mesh else {}
    config = from_mapping(fields | over, "lesson 17")
    run = Run(config, folder / name, corpus, watch=watch)
    try:
        with stoppable():
            rows = run.train()
    except Resumable as stopped:
        return print(str(stopped).removeprefix(f"{folder}/"))
    return {int(row["step"]): float(row["loss_validation"]) for row in rows}


# %% [markdown]
# The first run stops after half of its steps on the mesh `data=2,expert=2`, and resumes on `expert=4`. A second run
# trains on one device without a stop. The code prints the losses of a held-out text after every eighth step.

# %%
train("stopped", "data=2,expert=2", stop_after=16)
resumed = train("stopped", "expert=4")
undisturbed = train("undisturbed")
assert list(resumed) == list(undisturbed) == [8, 16, 24, 32]

# %% tags=["check"]
# up to rounding in 32 bits
same(list(resumed.values()), list(undisturbed.values()), "mesh.resumed", scale=1.0)

# %% tags=["volatile"]
for step, loss in resumed.items():
    mesh = "data=2,expert=2" if step <= 16 else "expert=4"
    on_one = undisturbed[step]
    print(f"step {step:2}: {loss:.6f} on {mesh:15}, {on_one:.6f} on one device")

# %% [markdown]
# The losses agree up to 32-bit rounding. This command does the same on simulated devices. On a pod, put the same flags
# in the job file ([docs/scale.md](../docs/scale.md)):
#
#     JAX_NUM_CPU_DEVICES=4 routelaws train --router sinkhorn --experts 4 --mesh data=2,expert=2 \
#         --balancing-group global --out runs/spread
#
# Without `--balancing-group`, each device is its own group. This needs fewer messages, but then another mesh gives
# another model.

# %% [markdown]
# ## 9. A model that does not fit on a device
#
# These lessons follow the paper of Clark et al. 2022. Its largest model has 512 experts in every second block. Where do
# its weights, gradients and moments fit? (Matrix products use `bfloat16` numbers of two bytes. Weights, gradients and
# moments have four bytes as before, so each weight takes sixteen bytes.)

# %%
from routelaws.accelerated.commands.models import plan_mesh
from routelaws.accelerated.training.devices.mesh_plan import MeshShape, plan_device

choices = {"router": "sinkhorn", "experts": 512, "dtype": "bfloat16"}
largest = from_mapping(plan_mesh.fields_of_size("1.3B") | choices, "lesson 17")
b, S, d, L, E = largest.batch_size, largest.sequence_length, 2048, 24, 512
V = largest.model.vocab_size
P = largest.accounting().total_parameters
of_experts = L // 2 * E * 8 * d**2
print(
    f"{P / 1e9:.0f} billion parameters, {of_experts / P:.1%} of them in experts",
    end=": ",
)
print(f"{16 * P / 1e12:.1f} TB on one device")
assert 16 * P > 1e12

# %% [markdown]
# Spread it over a mesh of 512 devices, `data=1,expert=256,model=2`. Each pair of devices along `model` has two experts
# of each routed block; each device holds half of each expert. An expert has no copy on this mesh, so its moments cannot
# be divided among copies. The gradients of all other weights are summed over all devices along `expert`. Each of these
# devices keeps its part of the moments. `plan_device` counts the bytes from the shapes of all weights; we count them
# with the formula of lesson 1.

# %%
shape = MeshShape(data=1, expert=256, model=2)
plan = plan_device(largest.model, shape, b, S, "bfloat16")
# attention, unrouted feed-forward networks: cut along model
halved = L * 5 * d**2 + L // 2 * 8 * d**2
# norms, routers, embedding, last norm: on every device
whole = L * 4 * d + L // 2 * d * E + V * d + 2 * d
same(plan.parameters, 4 * (of_experts // 512 + halved // 2 + whole))
same(plan.optimizer, 8 * (of_experts // 512 + (halved // 2 + whole) // 256))
print(f"on each of 512 devices {plan.parameters / 1e9:.2f} GB of weights", end=", ")
print(f"{plan.optimizer / 1e9:.2f} GB of moments")

# %% [markdown]
# `routelaws plan-mesh` does this calculation for every mesh and lists the best meshes first. It also counts the bytes
# that a device sends in a step (the tokens of section 3, the sums of sections 5 and 6). And it estimates the
# *activations* on a device: mainly the results of the forward pass that are stored until the gradient is computed. To
# save memory, a block can store only its input, and compute the rest again for its gradient. This is called
# *rematerialisation*. (`routelaws train` stores all activations; with `--rematerialise` it stores only the input of
# each block.) The compiler of TPUs decides, and `routelaws compile` asks it without a TPU.
# [docs/scale.md](../docs/scale.md) lists its answers for the paper's models: with 64 experts, this model fits on 128
# chips of 16 GB. Here are some columns of the table that `routelaws plan-mesh` prints.

# %%
import contextlib
import io
import json

flags = "--size 1.3B --router sinkhorn --experts 512 --dtype bfloat16 "
flags += "--devices 512 --memory 32GB --json"
with contextlib.redirect_stdout(io.StringIO()) as output:
    plan_mesh.main(flags.split())
print("                      GB on a device       GB sent in a step")
print("data expert model     all  rematerial.  to experts  over model  gradients")
names = "memory", "memory_recomputed", "all_to_all", "model_reduction"
for each in json.loads(output.getvalue())["meshes"][:3]:
    shown = [each[name] / 1e9 for name in (*names, "gradient_reduction")]
    print("{data:4} {expert:6} {model:5}".format(**each["mesh"]), end=" ")
    print("{:7.1f} {:12.1f} {:11.3f} {:11.3f} {:10.2f}".format(*shown))
assert plan.memory() < 32e9

# %% tags=["picture"]
plans = {}
for count in (32, 64, 128, 256):
    mesh = MeshShape(data=1, expert=count, model=2)
    plans[mesh.devices()] = plan_device(largest.model, mesh, b, S, "bfloat16")
names = {"parameters": "weights", "gradients": "gradients", "optimizer": "moments"}
names["activations_recomputed"] = "activations"


# %% tags=["picture"]
def draw(axes):
    below, at = np.zeros(len(plans)), range(len(plans))
    for i, (name, label) in enumerate(names.items()):
        heights = np.array([getattr(each, name) / 1e9 for each in plans.values()])
        axes.bar(at, heights, 0.6, bottom=below, color=COLOURS[i], label=label)
        below += heights
    look = {"color": "#4a4a4a", "linewidth": 1, "label": "a device of 32 GB"}
    axes.axhline(32, linestyle="--", **look)
    axes.set_xticks(range(len(plans)), [str(devices) for devices in plans])
    axes.set(xlabel="devices, with data=1 and model=2", ylabel="GB on each device")
    axes.legend(loc="upper right", reverse=True)


# %% tags=["picture"]
figure(
    draw,
    "Memory per device for the largest model, with all blocks rematerialised, by the "
    "number of devices.",
)

# %% [markdown]
# ## What to remember
#
# - An all-to-all sends each token to the device of its expert, and a second one sends the results back.
# - The group that shares a queue and a balance is part of the model. Another group gives another layer.
# - ZeRO-1 stores the optimizer's moments only once, in parts, and sends no more than before.
# - A run with the global group can resume on any mesh.
#
# ## Exercises
#
# Answers, with the code that checks them: [`answers/17_from_laptop_to_pod.py`](answers/17_from_laptop_to_pod.py).
#
# 1. Move "sat" and "down" to device 0, and "the" and "cat" to device 1. Which tokens travel now? With slots for all
#    tokens, does any result change? With $c = 1$, which tokens are dropped, for each kind of group?
# 2. How many devices do you need so that the moments on a device are smaller than its weights?
# 3. A program does not divide the loss of a device by $n$. What is wrong with the gradient? How far off are the weights
#    after a step of Adam? How could you find the mistake?
# 4. Take the mesh `data=2,expert=4` and eight experts. Which devices have expert 5, and which devices sum its gradient?
#    Which devices sum the gradient of an attention matrix?
# 5. Does the largest model fit on 256 devices of 26 GB without rematerialisation? On which mesh does it fit with
#    rematerialisation? Use `plan-mesh`.
# 6. On the best mesh of section 9 a device has 2048 tokens, and the capacity factor is 2. Count the bytes that it sends
#    to experts and back in a step, in all routed blocks. A number that travels has two bytes. The gradients of the
#    tokens travel the same way again. Which number of the table is this?
