#!/usr/bin/env bash
# optax 0.2.8: with bfloat16 weights, `inject_hyperparams` rounds b2 = 0.999 to 1, and the first step of Adam is NaN.
#
# `optax.inject_hyperparams(optax.adam)(learning_rate=schedule)` makes the learning rate readable for a log, and should
# not change the steps. But if all weights are bfloat16, it rounds all hyperparameters of the optimizer to bfloat16. The
# largest bfloat16 numbers below 1 are 0.996 and 0.992. So the default b2 = 0.999 becomes 1, and the second moment is
# 0 / 0. A b2 of 0.998 becomes 0.996, which forgets twice as fast, and no step shows it. RMSProp with decay = 0.999 takes
# steps that are 37 times too large. Without `inject_hyperparams`, all steps are right.
#
# If one weight is float32, such as a router among bfloat16 experts, the hyperparameters are float32, and all steps are
# right. So a mixture trains, and its dense baseline does not, or the type of the router decides. Cause: the type is the
# highest one of the weights. The docstring has an argument `hyperparam_dtype`, and does not give its default.
# `hyperparam_dtype=jnp.float32` is the remedy. Issue 1414 of optax reports the rounding.
#
# Seen with optax 0.2.8 and jax 0.10.2 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet optax==0.2.8 jax==0.10.2
cat > "$folder/steps.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax


def moved(optimizer, router, steps=2):
    """Return how far a bfloat16 expert moves, in learning rates, and the hyperparameters."""
    weights = {"experts": jnp.zeros(4, jnp.bfloat16), "router": jnp.zeros(4, router)}
    state = optimizer.init(weights)
    for _ in range(steps):
        gradients = jax.tree.map(lambda weight: jnp.full_like(weight, 0.1), weights)
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
    return f"{float(weights['experts'][0]) / -0.01:.1f}", getattr(state, "hyperparams", {})


factories = {
    "adam": (optax.adam, {}),
    "adamw": (optax.adamw, {}),
    "adam, b2 = 0.998": (optax.adam, {"b2": 0.998}),
    "rmsprop, decay = 0.999": (optax.rmsprop, {"decay": 0.999}),
}
for name, (factory, options) in factories.items():
    injected = optax.inject_hyperparams(factory)(0.01, **options)
    remedy = optax.inject_hyperparams(factory, hyperparam_dtype=jnp.float32)(0.01, **options)
    way, numbers = moved(injected, jnp.bfloat16)
    memory = float(numbers["decay" if "decay" in numbers else "b2"])
    print(
        f"{name}: plain {moved(factory(0.01, **options), jnp.bfloat16)[0]}, injected {way} with {memory:.3f}, "
        f"float32 router {moved(injected, jnp.float32)[0]}, hyperparam_dtype {moved(remedy, jnp.bfloat16)[0]}"
    )
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/steps.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='adam: plain 2.0, injected nan with 1.000, float32 router 2.0, hyperparam_dtype 2.0
adamw: plain 2.0, injected nan with 1.000, float32 router 2.0, hyperparam_dtype 2.0
adam, b2 = 0.998: plain 2.0, injected 2.0 with 0.996, float32 router 2.0, hyperparam_dtype 2.0
rmsprop, decay = 0.999: plain 53.9, injected 2000.0 with 1.000, float32 router 53.9, hyperparam_dtype 53.9'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
