"""A recorded routing replayed in small models of transformers, against gates written by hand."""

import numpy as np
import pytest

REASON = "torch and transformers are not installed, whose models this replays"
torch = pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
transformers = pytest.importorskip("transformers", reason=REASON, exc_type=ImportError)

from routelaws.accelerated.errors import InputError  # noqa: E402
from routelaws.accelerated.inspection.replay_transformers import replayed_experts  # noqa: E402
from routelaws.accelerated.inspection.transformers_routers import read_router  # noqa: E402

from .test_inspect_transformers import ARCHITECTURES, EXPERTS, SIZES, VOCABULARY, routers_of  # noqa: E402

TOKENS, NEAR = 40, 1e-5
GATES = {
    "mixtral": lambda chosen, _: chosen.softmax(-1),
    "olmoe": lambda chosen, all_: chosen.exp() / all_.exp().sum(-1, keepdim=True),
    "qwen3_moe": lambda chosen, all_: chosen.exp() / all_.exp().sum(-1, keepdim=True),
    "deepseek_v3": lambda chosen, _: 2.5 * chosen.sigmoid() / chosen.sigmoid().sum(-1, keepdim=True),
}
"""The gates of the models' papers, from the logits of the chosen experts and of all."""


@pytest.fixture(params=GATES)
def made(request):
    """Return a model, tokens, and the experts that it chooses."""
    kind = transformers.CONFIG_MAPPING[request.param]
    sizes = {key: value for key, value in SIZES.items() if hasattr(kind(), key)}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**sizes | ARCHITECTURES[request.param])).eval()
    with torch.no_grad():
        for router in routers_of(model).values():
            router.weight.mul_(20)
    tokens, own = torch.randint(VOCABULARY, (1, TOKENS)), []
    hooks = [
        router.register_forward_hook(lambda _, __, answer, name=name: own.append(read_router(name, answer)[2]))
        for name, router in routers_of(model).items()
    ]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return request.param, model, tokens, np.stack([part.reshape(TOKENS, -1).numpy() for part in own])


def others(expert: np.ndarray) -> np.ndarray:
    """Return experts that differ from each choice; those of a token differ from each other."""
    return (expert + 3) % EXPERTS


def loss_of(model, tokens):
    model.zero_grad()
    answer = model(tokens, labels=tokens)
    answer.loss.backward()
    gradients = [router.weight.grad.clone() for router in routers_of(model).values()]
    return answer.logits.detach(), gradients


def test_the_models_own_routing_changes_nothing(made):
    _, model, tokens, own = made
    wanted, gradients = loss_of(model, tokens)
    with replayed_experts(model, own[:, :, ::-1]):
        logits, again = loss_of(model, tokens)
    assert torch.allclose(logits, wanted, atol=NEAR)
    for one, other in zip(gradients, again, strict=True):
        assert torch.allclose(one, other, atol=NEAR) and other.abs().max() > 1e-6


def test_logits_and_gradients_are_those_of_gates_by_hand(made):
    """Hooks replace the answer of each router by gates of the paper's formula."""
    kind, model, tokens, own = made
    expert = others(own)
    with replayed_experts(model, expert):
        logits, gradients = loss_of(model, tokens)
    hooks = []
    for part, (name, router) in zip(expert, routers_of(model).items(), strict=True):

        def by_hand(_, __, answer, part=part, name=name):
            chosen = torch.as_tensor(part)
            scores = read_router(name, answer)[0].reshape(TOKENS, -1)
            gates = GATES[kind](scores.gather(1, chosen), scores)
            return (answer[0], gates.reshape(answer[1].shape), chosen.reshape(answer[2].shape))

        hooks.append(router.register_forward_hook(by_hand))
    wanted, by_hand = loss_of(model, tokens)
    for hook in hooks:
        hook.remove()
    assert torch.allclose(logits, wanted, atol=NEAR)
    for one, other in zip(gradients, by_hand, strict=True):
        assert torch.allclose(one, other, atol=NEAR) and other.abs().max() > 1e-6


def test_stored_gates_give_the_router_no_gradient(made):
    """The trap that `replayed_experts` avoids."""
    _, model, tokens, _ = made
    hooks = [
        router.register_forward_hook(lambda _, __, answer: (answer[0], answer[1].detach(), answer[2]))
        for router in routers_of(model).values()
    ]
    model(tokens, labels=tokens).loss.backward()
    for hook in hooks:
        hook.remove()
    assert all(
        router.weight.grad is None or router.weight.grad.abs().max() == 0 for router in routers_of(model).values()
    )


def test_a_last_token_without_a_route_changes_no_other_token(made):
    _, model, tokens, own = made
    expert = others(own)
    with replayed_experts(model, expert), torch.no_grad():
        wanted = model(tokens).logits
    with replayed_experts(model, expert[:, :-1]), torch.no_grad():
        without_row = model(tokens).logits
    expert[:, -1] = -1
    with replayed_experts(model, expert), torch.no_grad():
        missing = model(tokens).logits
    assert torch.equal(without_row[:, :-1], wanted[:, :-1]) and torch.equal(missing, without_row)
    assert not torch.equal(without_row[:, -1], wanted[:, -1])


@pytest.mark.parametrize(("change", "message"), [
    (lambda expert: expert[1:], "the model has"), (lambda expert: expert * 0, "a token has an expert twice"),
    (lambda expert: expert + EXPERTS, f"for {TOKENS} tokens of {EXPERTS} experts"),
    (lambda expert: np.concatenate([expert, expert], axis=1), f"a trace of {2 * TOKENS} tokens"),
    (lambda expert: expert[:, :, :1], "does not choose its experts by torch.topk"),
])  # fmt: skip
def test_another_models_routing_is_an_error(made, change, message):
    _, model, tokens, own = made
    with pytest.raises(InputError, match=message), replayed_experts(model, change(own)), torch.no_grad():
        model(tokens)
    with torch.no_grad():
        model(tokens)
