"""Replay a recorded routing in a model of transformers.

The router's own code computes the gates from its logits at the recorded experts, so their gradient flows as in
training. Gates that are stored, or taken from probabilities of which the recorded experts' are already 0, give the
router no gradient.
"""

import contextlib
import re
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..errors import InputError
from .transformers_routers import ROUTERS


@contextlib.contextmanager
def replayed_experts(model: nn.Module, expert: np.ndarray) -> Iterator[None]:
    """Let the routers of a model choose the recorded experts, in every forward pass inside the `with` block.

    Args:
        model: a model of transformers whose routers call `torch.topk` on the scores of the experts.
        expert: [n_r, T, k] integers, the experts of the T tokens of a forward pass. The routers choose for themselves
            where a row is negative, and for tokens after the T-th: a generated last token has no route.

    Raises:
        InputError: the number of routers or of choices, or an expert, does not fit the model.

    Example:
        with replayed_experts(model, expert):
            model(tokens, labels=tokens).loss.backward()
    """
    named = model.named_modules()
    routers = [m for name, m in named if re.fullmatch(ROUTERS, type(m).__name__) and "attention" not in name]
    if expert.ndim != 3 or len(expert) != len(routers):
        raise InputError(f"experts of shape {list(expert.shape)}; the model has {len(routers)} routers; use its trace")
    if (np.diff(np.sort(np.where(expert < 0, -1 - np.arange(expert.shape[2]), expert), axis=2), axis=2) == 0).any():
        raise InputError("a token has an expert twice; replay would add it twice; check the trace")
    hooks, modes = [], [_Chosen(torch.as_tensor(np.ascontiguousarray(part), dtype=torch.int64)) for part in expert]
    for router, mode in zip(routers, modes, strict=True):
        hooks.append(router.register_forward_pre_hook(lambda _, __, mode=mode: mode.__enter__() and None))
        hooks.append(router.register_forward_hook(lambda _, __, ___, mode=mode: mode.close(), always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Chosen(TorchFunctionMode):
    """Replace the choice of k of E scores by recorded experts, while the mode is active."""

    def __init__(self, expert: torch.Tensor):
        super().__init__()
        self.expert, self.used = expert, 0

    def close(self) -> None:
        self.__exit__(None, None, None)
        if not self.used:
            raise InputError("a router of the model does not choose its experts by torch.topk; it cannot be replayed")
        self.used = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **kwargs or {})
        if function not in (torch.topk, torch.Tensor.topk):
            return answer
        scores, (tokens, choices) = args[0], self.expert.shape
        own = answer.indices.reshape(-1, answer.indices.shape[-1])
        if own.shape[1] != choices or scores.shape[-1] <= choices:  # a choice of groups
            return answer
        self.used += 1
        if len(own) < tokens or int(self.expert.max()) >= scores.shape[-1]:
            raise InputError(f"a trace of {tokens} tokens for {len(own)} tokens of {scores.shape[-1]} experts")
        given = torch.cat([self.expert, self.expert.new_full((len(own) - tokens, choices), -1)]).to(own.device)
        chosen = torch.where((given < 0).any(dim=1, keepdim=True), own, given).reshape(answer.indices.shape)
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))
