"""Torch modules as backends: convert arrays, set weights, and make expert e return unit vector e."""

import numpy as np
import torch

from routelaws.conformance.adapters.blocks import ANSWER


def from_numpy(array, dtype: str = "float32") -> torch.Tensor:
    """Return a tensor that shares the array's memory, except in bfloat16. So the suite detects writes to the input."""
    tensor = torch.from_numpy(array)
    return tensor.bfloat16() if dtype == "bfloat16" else tensor


def put(module: torch.nn.Module, **weights) -> torch.nn.Module:
    """Set weights by parameter name ("__" means a dot), and return the module in evaluation mode.

    The whole module gets the dtype of the first weight.

    Raises:
        ValueError: the shapes of a weight and its parameter differ.
    """
    module.to(torch.as_tensor(next(iter(weights.values()))).dtype)
    with torch.no_grad():
        for path, value in weights.items():
            parameter = module.get_parameter(path.replace("__", "."))
            if tuple(parameter.shape) != tuple(value.shape):
                raise ValueError(f"{path} has shape {tuple(parameter.shape)}, not {tuple(value.shape)}")
            parameter.copy_(torch.as_tensor(value))
    return module.eval()


def identity(num_outputs: int, num_inputs: int) -> torch.Tensor:
    """Return a router weight [E, d] with which the logits are the first E coordinates of the input."""
    return torch.eye(num_outputs, num_inputs)


def plant(layer: torch.nn.Module, num_experts: int, d_model: int, d_ff: int, weights=None) -> torch.nn.Module:
    """Set the weights of a routed layer as `blocks.plant` does, and return the layer in evaluation mode.

    Row t of the output [T, d] then has the gates of token t. The router is the matrix of shape [E, d] or [d, E].
    Experts can be stacked parameters (gate and up projections concatenated or interleaved) or one module each. Biases
    and shared experts become 0. E, d, f and 2 f must differ. With a `blocks.Planted`, the layer gets these weights: of
    gated experts, `up` goes to the first matrix and `linear` to the second.

    Raises:
        LookupError: no parameter has the shape of a router, or no experts are found.
    """
    with torch.no_grad():
        parameters = dict(layer.named_parameters())
        for value in parameters.values():
            value.zero_()
        routers = [value for value in parameters.values() if sorted(value.shape) == sorted((num_experts, d_model))]
        for value in routers:
            router = torch.eye(d_model, num_experts) if weights is None else torch.from_numpy(weights.router)
            value.copy_(router if len(value) == d_model else router.T)
        planted = _plant_stacked(parameters.values(), num_experts, d_model, d_ff, weights) or _plant_single(
            layer, d_model, d_ff, weights
        )
    if not routers or not planted:
        raise LookupError(f"no {'experts' if routers else 'router'} of {type(layer).__name__} found by shape")
    return layer.eval()


def experts_with_gradient(layer: torch.nn.Module, num_experts: int) -> int:
    """Count the experts with a non-zero gradient. Experts are stacked parameters [E, ., .], or one module each."""
    stacked = [value.grad for value in layer.parameters() if value.ndim == 3 and len(value) == num_experts]
    if stacked:
        moved = torch.stack(
            [torch.zeros(num_experts) if gradient is None else gradient.abs().amax((1, 2)) for gradient in stacked]
        )
        return int((moved > 0).any(0).sum())
    return sum(
        any(value.grad is not None and value.grad.any() for value in expert.parameters()) for expert in _single(layer)
    )


def _single(layer: torch.nn.Module) -> list:
    holders = (module for module in layer.modules() if isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict))
    return next((list(module.values() if hasattr(module, "values") else module) for module in holders), [])


def _plant_stacked(parameters, num_experts: int, d_model: int, d_ff: int, weights) -> bool:
    """Set the projections of stacked experts [E, ., .]. Return whether the layer has such experts."""
    stacked = [value for value in parameters if value.ndim == 3 and len(value) == num_experts]
    inner = [value for value in stacked if sorted(value.shape[1:]) == sorted((d_model, 2 * d_ff))]
    others = [value for value in stacked if sorted(value.shape[1:]) == sorted((d_model, d_ff))]
    inner += others[:-1] if others else []
    if not others:
        return False
    writes = others[-1] if others[-1].shape[1] == d_ff else others[-1].transpose(1, 2)
    reads = [value if value.shape[1] == d_model else value.transpose(1, 2) for value in inner]
    if weights is not None:
        halves = [half for value in reads for half in value.split(d_ff, dim=2)]
        for half, value in zip(
            [*halves, writes], (weights.up, weights.linear)[: len(halves)] + (weights.down,), strict=True
        ):
            half.copy_(torch.from_numpy(value))
        return True
    for value in reads:
        value[:, -1] = ANSWER
    factor = ANSWER ** (sum(value.numel() for value in inner) / others[-1].numel())
    writes[np.arange(num_experts), 0, np.arange(num_experts)] = 1 / factor
    return True


def _plant_single(layer: torch.nn.Module, d_model: int, d_ff: int, weights) -> bool:
    """Set the linear maps d -> f and f -> d of experts that are modules. Return whether the layer has such experts."""
    experts = _single(layer)
    for e, expert in enumerate(experts):
        linear = [module for module in expert.modules() if isinstance(module, torch.nn.Linear)]
        inner = [module for module in linear if module.in_features == d_model]
        for module, value in zip(
            inner, (None, None) if weights is None else (weights.up, weights.linear), strict=False
        ):
            if value is None:
                module.weight[:, -1] = ANSWER
            else:
                module.weight.copy_(torch.from_numpy(value[e].T))
        for module in linear:
            if module.out_features == d_model and weights is None:
                module.weight[e, 0] = ANSWER ** -len(inner)
            elif module.out_features == d_model:
                module.weight.copy_(torch.from_numpy(weights.down[e].T))
    return bool(experts)
