"""Each design of `train --config` routes as the router of that model in transformers, on the same weights."""

import numpy as np
import pytest

from routelaws.accelerated.training.configuration import from_mapping, read_config_file
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import UNIT
from routelaws.reference import balance, routed_block

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

T, D = 9, 16
RANDOM = np.random.default_rng(0)


def _deepseek_v3(model):
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as module

    given = dict(n_routed_experts=model.expert_count, n_shared_experts=model.shared_experts)
    config = transformers.DeepseekV3Config(hidden_size=D, **given)
    groups = config.n_group, config.topk_group, config.routed_scaling_factor
    assert groups == (model.expert_groups, model.groups_per_token, model.gate_scale)
    return module.DeepseekV3TopkRouter(config), config


def _qwen3(model):
    from transformers.models.qwen3_moe import modeling_qwen3_moe as module

    config = transformers.Qwen3MoeConfig(hidden_size=D, norm_topk_prob=True)  # as released; the class has False
    return module.Qwen3MoeTopKRouter(config), config


def _mixtral(model):
    from transformers.models.mixtral import modeling_mixtral as module

    config = transformers.MixtralConfig(hidden_size=D)
    return module.MixtralTopKRouter(config), config


def _gpt_oss(model):
    from transformers.models.gpt_oss import modeling_gpt_oss as module

    config = transformers.GptOssConfig(hidden_size=D, num_local_experts=32)  # gpt-oss-20b; the class has those of 120b
    return module.GptOssTopKRouter(config), config


ROUTERS = {"deepseek-v3": _deepseek_v3, "qwen3": _qwen3, "mixtral": _mixtral, "gpt-oss": _gpt_oss}


def exact(*shape) -> np.ndarray:
    """Return numbers in 64ths, whose products are exact in float32."""
    return np.round(RANDOM.standard_normal(shape) * 64) / 64


@pytest.mark.parametrize("name", ROUTERS)
def test_a_design_routes_as_its_model_in_transformers(name):
    """Experts, gates by expert, and the weight of the balance loss: theirs is k at balance."""
    model = from_mapping(read_config_file(name)).model
    router, config = ROUTERS[name](model)
    assert (config.num_local_experts, config.num_experts_per_tok) == (model.expert_count, model.choices)
    if hasattr(config, "router_aux_loss_coef"):
        assert model.balance_weight == pytest.approx(config.router_aux_loss_coef * model.choices)
    params = {"router": exact(D, model.expert_count)}
    if model.router_bias:
        params["router_bias"] = exact(model.expert_count)
    if model.bias_rate:
        params["bias"] = exact(model.expert_count) / 8
    with torch.no_grad():
        router.weight.copy_(torch.tensor(params["router"].T))
        for ours, theirs in (("router_bias", "bias"), ("bias", "e_score_correction_bias")):
            if ours in params:
                getattr(router, theirs).copy_(torch.tensor(params[ours]))
        x = exact(T, D)
        _, gates, experts = (leaf.numpy() for leaf in router(torch.tensor(x, dtype=torch.float32)))
    wanted = routed_block.decide(params, x, np.zeros((1, T), int), model).routing
    order, ours = np.argsort(experts, axis=1), np.argsort(wanted.expert, axis=1)
    by_expert = np.take_along_axis(wanted.gate, ours, axis=1)
    assert_same(np.take_along_axis(experts, order, axis=1), np.take_along_axis(wanted.expert, ours, axis=1), what=name)
    logits = x @ params["router"]
    unit = UNIT["float32"] * (4 + 2 * np.abs(logits).max())
    found = np.take_along_axis(gates, order, axis=1)
    assert_close_bounded("top_k.gate", found, by_expert, unit * by_expert, what=f"gates of {name}")


def test_the_balance_loss_of_transformers_is_k_at_balance():
    """What the weights of the designs were multiplied by: theirs is the dialect "tokens"."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    z = exact(T, 8)
    theirs = float(load_balancing_loss_func((torch.tensor(z, dtype=torch.float32),), num_experts=8, top_k=2))
    expert = np.argsort(-z, axis=1)[:, :2]
    wanted = balance.auxiliary_loss(z, expert, dialect="tokens").loss
    unit = UNIT["float32"] * (4 + 2 * np.abs(z).max())
    assert_close_bounded("balance.loss", theirs, wanted, unit * wanted, what="load_balancing_loss_func")
    assert wanted == pytest.approx(2 * balance.auxiliary_loss(z, expert).loss)
