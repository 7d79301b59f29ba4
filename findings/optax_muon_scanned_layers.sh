#!/usr/bin/env bash
# optax 0.2.8: for layers stacked for `lax.scan`, Muon orthogonalises the norm gains and gives the matrices to Adam.
#
# `optax.contrib.muon` takes a parameter with two axes for a matrix. In one layer, the matrix [d, f] gets Muon, and the
# gain [d] gets Adam. In a stack of L layers the gains are [L, d], so Muon makes the gains of two layers orthogonal. The
# matrices [L, d, f] and the experts [E, d, f] or [L, E, d, f] get Adam, by default with the learning rate of Muon.
# Nothing warns. `muon_weight_dimension_numbers` names the axes of each parameter, also of a stack.
#
# Seen with optax 0.2.8 and jax 0.10.2 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/muon.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

L, E, d, f = 3, 4, 32, 16
one = {"gain": (d,), "matrix": (d, f), "experts": (E, d, f)}
stack = {name: (L, *shape) for name, shape in one.items()}
for title, shapes in (("one layer", one), ("a stack of layers", stack)):
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    keys = dict(zip(shapes, jax.random.split(jax.random.key(0), 3)))
    gradients = {name: jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
    gradients["gain"] = gradients["gain"] / 4 + 1  # nearly the same for all layers
    optimizer = optax.contrib.muon(1.0)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    for name, shape in shapes.items():
        sizes = jnp.abs(updates[name])  # all equal in Adam's first step
        print(f"{title}: {name} {list(shape)} {'Adam' if jnp.ptp(sizes) < 1e-3 * sizes.max() else 'Muon'}")
for title, gains in (("gradients", gradients["gain"]), ("updates", updates["gain"])):
    unit = gains / jnp.linalg.norm(gains, axis=1, keepdims=True)
    print(f"the {title} of the gains of two layers have a cosine above 0.5: {bool(unit[0] @ unit[1] > 0.5)}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/muon.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='one layer: gain [32] Adam
one layer: matrix [32, 16] Muon
one layer: experts [4, 32, 16] Adam
a stack of layers: gain [3, 32] Muon
a stack of layers: matrix [3, 32, 16] Adam
a stack of layers: experts [3, 4, 32, 16] Adam
the gradients of the gains of two layers have a cosine above 0.5: True
the updates of the gains of two layers have a cosine above 0.5: False'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
