"""Upcycling: make the weights of a routed model from a trained dense model of the same shape.

1. COPY    take everything except the FFNs of the routed blocks from the dense model
2. CUT     cut each FFN of width f into G narrow FFNs of width f / G (columns of `up` and `linear`, rows of `down`),
           and make E copies of each
3. SCALE   multiply `down` of each copy by G, except for routers with the constant gate 1/k
4. VARY    add noise to each copy, and draw a share of its hidden units anew, so that copies differ
5. ROUTER  use a new router with initial weights

Without step 4, every expert of granularity 1 equals the dense FFN. The routed model then has the loss of the dense
model if the gates of a token sum to 1. With G > 1 this holds if a token goes to all experts with equal gates.

Sources: Komatsuzaki et al. 2023, "Sparse Upcycling" (arXiv 2212.05055), section 2, copies the FFNs and adds a fresh
router; He et al. 2024 (arXiv 2410.07524) cut them into narrow experts and scale the weights; Nakamura et al. 2025,
"Drop-Upcycling" (arXiv 2502.19261), draw a share of the hidden units anew, from the mean and deviation of the weights
that they replace. Our choice: noise and new units have the distribution of initial weights.
"""

import numpy as np

from .configuration import ModelConfig
from .errors import InputError


def upcycle(
    dense: dict,
    fresh: dict,
    config: ModelConfig,
    *,
    noise: float = 0.0,
    redrawn: float = 0.0,
    uniforms: np.ndarray | None = None,
) -> dict:
    """Return the parameters of a routed model made from a trained dense model, in the steps at the top of this file.

    Args:
        dense: parameters of the dense model, a tree as `transformer.parameter_shapes` describes it, with L FFNs.
        fresh: initial parameters of the routed model. The result takes the router, and everything that the dense model
            lacks, from `fresh`. The experts of `fresh` supply the noise and the new units.
        config: the routed model.
        noise: factor; the experts are copies + noise · fresh experts.
        redrawn: the share of each expert's hidden units to draw anew, 0 to 1: the units with the smallest uniforms.
        uniforms: [n_r, E G, f / G], random numbers; needed if `redrawn` is above 0.

    Returns:
        A tree with the shapes of `fresh`.

    Raises:
        ValueError: the dense model has other shapes or wide FFNs, `redrawn` is out of range, or uniforms are missing.
    """
    if not 0 <= redrawn <= 1 or (redrawn and uniforms is None):
        raise InputError(f"redrawn is {redrawn}; it has to be between 0 and 1, and needs uniforms if it is above 0")
    routed = np.array([config.is_routed(block) for block in range(config.blocks)])
    result = fresh | {name: dense[name] for name in ("embedding", "blocks", "final_norm")}
    if "dense_ffn" in fresh:
        result["dense_ffn"] = {name: leaf[~routed] for name, leaf in dense["dense_ffn"].items()}
    experts = dict(fresh["routed_ffn"])
    new = np.zeros((config.num_routed, config.expert_count, 1), bool)
    if redrawn:
        new = np.argsort(np.argsort(uniforms, axis=-1), axis=-1) < round(redrawn * uniforms.shape[-1])
    for name in dense["dense_ffn"]:
        copy = _cut(np.asarray(dense["dense_ffn"][name])[routed], name, config)
        unit = new[..., None] if name == "down" else new[:, :, None, :]
        drawn = np.asarray(fresh["routed_ffn"][name])
        if copy.shape != drawn.shape:
            raise InputError(f"the experts need {name} of shape {drawn.shape}; the dense model gives {copy.shape}")
        experts[name] = np.where(unit, drawn, copy + noise * drawn).astype(copy.dtype)
    return result | {"routed_ffn": experts}


def _cut(ffn: np.ndarray, name: str, config: ModelConfig) -> np.ndarray:
    """Return [n_r, E G, ...] from a matrix of the FFNs [n_r, ...]: expert e G + g is slice g of the hidden units."""
    slices = np.stack(np.split(ffn, config.granularity, axis=1 if name == "down" else 2), axis=1)
    gated = [not part.record.constant_gate for part, number in config.parts for _ in range(number)]
    scale = np.where(gated, config.granularity, 1).reshape(-1, 1, 1, 1) if name == "down" else 1
    return np.tile(slices, (1, config.experts, 1, 1)) * scale
