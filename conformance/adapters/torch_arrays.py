"""What the adapters of torch libraries share: arrays there and back, and modules with weights that are given."""

import torch

from routelaws.conformance.adapters import counted


def from_numpy(array, dtype: str) -> torch.Tensor:
    """Return a tensor over the same memory, so that a library that writes into its input is seen to do so."""
    return torch.from_numpy(array)


def to_numpy(value):
    """Return a tensor as a NumPy array; what is no tensor stays as it is."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def with_weights(module: torch.nn.Module, **weights) -> torch.nn.Module:
    """Return a module in evaluation, with weights by the dots and names of its parameters."""
    with torch.no_grad():
        for path, value in weights.items():
            parameter = module.get_parameter(path.replace("__", "."))
            assert parameter.shape == value.shape, f"{path} has shape {tuple(parameter.shape)}, not {value.shape}"
            parameter.copy_(value)
    return module.eval()


def routing(expert: torch.Tensor, gate: torch.Tensor, num_experts: int) -> dict:
    """Return a routing with load, plan and residual counted from the experts [T, k]."""
    chosen = torch.nn.functional.one_hot(expert, num_experts).sum(1).to(gate.dtype)
    return counted.routing(expert, gate, chosen)


def balance(loss, logits: torch.Tensor, expert: torch.Tensor) -> dict:
    """Return a balance loss with the share of all choices, divided by T, and the mean probability beside it."""
    share = torch.nn.functional.one_hot(expert, logits.shape[1]).sum(1).to(logits.dtype).mean(0)
    return {"loss": loss, "share": share, "probability": logits.softmax(1).mean(0)}
