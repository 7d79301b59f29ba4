#!/usr/bin/env bash
# optax 0.2.8: the label -100, which means "ignore" elsewhere, counts as token V - 100, and the model learns that token.
#
# Data collators of transformers mark padding and prompts with the label -100, and the loss of torch skips it.
# `softmax_cross_entropy_with_integer_labels` reads -100 as an index from the end. Each such position has the loss of
# token V - 100, and its gradient teaches that token. With fewer than 100 tokens, the loss is NaN. No error says so.
#
# The other usual path, `jax.nn.one_hot`, makes these rows zero. Their losses are 0, so they teach no token, but a mean
# over all positions is too small: here by half. So multiply the losses by a mask, and divide by its sum. Otherwise a
# held-out loss depends on how much padding its batches have, and a law that is fitted to such losses is wrong.
#
# Seen with optax 0.2.8 and jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/labels.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

labels = jnp.array([3, 7, -100, -100])
for size in (1000, 64):
    logits = jax.random.normal(jax.random.key(0), (4, size))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    tokens = -jax.nn.log_softmax(logits)  # the loss of each token at each position
    if size > 100:
        same = jnp.allclose(losses[2:], tokens[2:, size - 100], rtol=1e-5)
        print(f"{size} tokens: the label -100 has the loss of token {size - 100}: {same}")
    else:
        print(f"{size} tokens: the label -100 has the loss {losses[2]}")

size = 1000
mean = lambda shared: optax.softmax_cross_entropy_with_integer_labels(jnp.tile(shared, (4, 1)), labels).mean()
raised = -jax.grad(mean)(jnp.zeros(size))
tokens = jnp.flatnonzero(raised > 0)
print("one step raises", ", ".join(f"token {token} by {raised[token]:.2f}" for token in tokens.tolist()))

logits = jax.random.normal(jax.random.key(0), (4, size))
losses = optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, size))
print(f"one_hot: mean over all positions / mean over labelled positions = {losses.mean() / losses[:2].mean():.2f}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/labels.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='1000 tokens: the label -100 has the loss of token 900: True
64 tokens: the label -100 has the loss nan
one step raises token 3 by 0.25, token 7 by 0.25, token 900 by 0.50
one_hot: mean over all positions / mean over labelled positions = 0.50'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
