"""Designs of `train --config` and layers of other models route like the model in transformers."""

import importlib

import numpy as np
import pytest

from routelaws.accelerated.training.configuration import from_mapping, read_config_file
from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.reference import balance, experts, routed_block
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.routers import sparsemixer, top_k

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

    config = transformers.GptOssConfig(hidden_size=D, num_local_experts=32)  # gpt-oss-20b; the class has 120b
    return module.GptOssTopKRouter(config), config


def _deepseek_v4(model):
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as module

    sizes = dict(hidden_size=D, num_local_experts=model.expert_count, num_experts_per_tok=model.choices)
    config = transformers.DeepseekV4Config(**sizes, vocab_size=30)
    assert (config.scoring_func, config.routed_scaling_factor) == (model.gate, model.gate_scale)
    return module, config


def test_the_blocks_of_deepseek_v4_route_as_in_transformers():
    """A table of token ids chooses the experts of the first routed block, the scores those of the others."""
    model = from_mapping(read_config_file("deepseek-v4")).model
    module, config = _deepseek_v4(model)
    weights, bias, x = exact(D, model.expert_count), exact(model.expert_count) / 8, exact(T, D)
    table, ids = routed_block.hash_table(model)[:30], np.arange(2, T + 2)
    with torch.no_grad():
        for index, kind in ((0, module.DeepseekV4HashRouter), (model.num_routed - 1, module.DeepseekV4TopKRouter)):
            router, inputs = kind(config).double(), [torch.tensor(x)]
            router.weight.copy_(torch.tensor(weights.T))
            if index == 0:
                router.tid2eid.copy_(torch.tensor(table))
                inputs.append(torch.tensor(ids))
            else:
                router.e_score_correction_bias.copy_(torch.tensor(bias))
            _, gates, chosen = (leaf.numpy() for leaf in router(*inputs))
            params = {"router": weights, "bias": bias}
            wanted = routed_block.decide(params, x, ids[None], model.of_block(index), table=table).routing
            order, ours = np.argsort(chosen, axis=1), np.argsort(wanted.expert, axis=1)
            experts = [np.take_along_axis(rows, by, axis=1) for rows, by in ((chosen, order), (wanted.expert, ours))]
            assert_same(*experts, what=kind.__name__)
            by_expert = np.take_along_axis(wanted.gate, ours, axis=1)
            found, unit = (
                np.take_along_axis(gates, order, axis=1),
                UNIT["float64"] * (4 + 2 * np.abs(x @ weights).max()),
            )
            assert_close_bounded("top_k.gate", found, by_expert, unit * by_expert, what=kind.__name__)


BLOCKS = {
    "deepseek-v3": ("deepseek_v3", "DeepseekV3MoE"),
    "deepseek-v4": ("deepseek_v4", "DeepseekV4SparseMoeBlock"),
    "qwen3": ("qwen3_moe", "Qwen3MoeSparseMoeBlock"),
    "mixtral": ("mixtral", "MixtralSparseMoeBlock"),
    "gpt-oss": ("gpt_oss", "GptOssMLP"),
    "nemotron-3": ("nemotron_h", "NemotronHMoE"),
    "longcat-flash": ("longcat_flash", "LongcatFlashMoE"),
    "olmoe": ("olmoe", "OlmoeSparseMoeBlock"),
}
"""The routed layer of each design, in transformers."""


@pytest.mark.parametrize("name", BLOCKS)
def test_a_design_has_as_many_parameters_as_its_layer_in_transformers(name):
    """Compare P and F of a block at the sizes of the design. A token uses half as many parameters as its FLOPs."""
    model = from_mapping(read_config_file(name)).model
    module = importlib.import_module("transformers.models.{0}.modeling_{0}".format(BLOCKS[name][0]))
    kind, width = getattr(module, BLOCKS[name][1]), model.ffn_width // model.granularity
    config = next(
        vars(module)[one] for one in vars(module) if one.endswith("Config") and one[:4] == kind.__name__[:4]
    )()
    sizes = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), model.expert_count)
    sizes |= dict.fromkeys(("intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size"), width)
    sizes |= dict(hidden_size=model.d_model, moe_latent_size=model.latent_width, zero_expert_num=model.zero_experts)
    sizes |= dict(moe_shared_expert_intermediate_size=model.shared_experts * width)
    for field in (field for field in sizes if hasattr(config, field)):
        setattr(config, field, sizes[field])
    with torch.device("meta"):
        layer = kind(config, **({"layer_idx": 40} if name == "deepseek-v4" else {}))
    weights = {
        path: leaf for path, leaf in layer.named_parameters() if not path.startswith("experts") or leaf.ndim == 3
    }
    left_out = {path for path, _ in layer.named_parameters()} - {*weights}
    assert left_out == ({"experts.gate_up_proj_bias", "experts.down_proj_bias"} if name == "gpt-oss" else set())
    experts = {path: leaf for path, leaf in weights.items() if path.startswith("experts")}
    # transformers gives the identity experts of LongCat-Flash a row in gate_up_proj, which it never uses.
    unused = sum(leaf[model.expert_count :].numel() for leaf in experts.values())
    assert (unused > 0) == (name == "longcat-flash")
    total = sum(leaf.numel() for leaf in weights.values()) - unused
    bias = sum(leaf.numel() for path, leaf in weights.items() if path.endswith("router.bias"))  # F excludes additions
    used = sum(leaf.numel() for path, leaf in weights.items() if path not in experts) - bias
    used += model.real_experts * sum(leaf[0].numel() for leaf in experts.values())
    sizes = {field: getattr(model, field) for field in ("vocab_size", "d_model", "blocks", "heads", "kqv_size")}
    dense = ModelConfig(**sizes, activation=model.activation, positions=model.positions).accounting(8)
    counted = model.accounting(8)
    ffn = (3 if model.activation == "swiglu" else 2) * model.d_model * model.ffn_width
    assert counted.total_parameters - dense.total_parameters == model.num_routed * (total - ffn)
    assert counted.flops_per_token - dense.flops_per_token == 2 * model.num_routed * (used - ffn)


ROUTERS = {"deepseek-v3": _deepseek_v3, "qwen3": _qwen3, "mixtral": _mixtral, "gpt-oss": _gpt_oss}


def exact(*shape) -> np.ndarray:
    """Return numbers in 64ths, whose products are exact in float32."""
    return np.round(RANDOM.standard_normal(shape) * 64) / 64


@pytest.mark.parametrize("name", ROUTERS)
def test_a_design_routes_as_its_model_in_transformers(name):
    """Compare experts, gates by expert, and the weight of the balance loss, which is k at balance in transformers."""
    model = from_mapping(read_config_file(name)).model
    router, config = ROUTERS[name](model)
    assert (config.num_local_experts, config.num_experts_per_tok) == (model.expert_count, model.choices)
    if hasattr(config, "router_aux_loss_coef"):
        assert model.balance_weight == config.router_aux_loss_coef * model.choices
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
        _, gates, chosen = (leaf.numpy() for leaf in router(torch.tensor(x, dtype=torch.float32)))
    wanted = routed_block.decide(params, x, np.zeros((1, T), int), model).routing
    order, ours = np.argsort(chosen, axis=1), np.argsort(wanted.expert, axis=1)
    by_expert = np.take_along_axis(wanted.gate, ours, axis=1)
    assert_same(np.take_along_axis(chosen, order, axis=1), np.take_along_axis(wanted.expert, ours, axis=1), what=name)
    logits = x @ params["router"]
    unit = UNIT["float32"] * (4 + 2 * np.abs(logits).max())
    found = np.take_along_axis(gates, order, axis=1)
    assert_close_bounded("top_k.gate", found, by_expert, unit * by_expert, what=f"gates of {name}")


def test_the_sparsemixer_of_transformers():
    from transformers.models.phimoe.modeling_phimoe import sparsemixer as theirs

    z = np.concatenate([exact(40, 6), 3 + exact(40, 6) / 64, -np.abs(exact(20, 6)) - 1])
    with torch.no_grad():
        gates, chosen = theirs(torch.tensor(z, dtype=torch.float32), jitter_eps=0.01, training=False)
    wanted = sparsemixer.sparsemixer_router(z)
    assert_same(chosen.numpy(), wanted.expert, what="sparsemixer: experts")
    unit = UNIT["float32"] * (4 + 2 * np.abs(z).max())
    assert_close_bounded("top_k.gate", gates.numpy(), wanted.gate, unit * wanted.gate, what="sparsemixer: gates")
    assert (wanted.gate < 0.99).any() and (wanted.gate == 1).any()


def test_the_layer_of_llama4_has_its_gates_on_the_input():
    from transformers.models.llama4 import modeling_llama4 as module

    sizes = dict(hidden_size=D, intermediate_size=2 * D, intermediate_size_mlp=2 * D, num_local_experts=4)
    layer = module.Llama4TextMoe(transformers.Llama4TextConfig(**sizes, num_experts_per_tok=1)).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.tensor(exact(*weight.shape) / 4))
        x = exact(T, D)
        found = (layer(torch.tensor(x)[None])[0] - layer.shared_expert(torch.tensor(x))).numpy()
        both = layer.experts.gate_up_proj.numpy()
        params = {"up": both[..., : 2 * D], "linear": both[..., 2 * D :], "down": layer.experts.down_proj.numpy()}
        logits = x @ layer.router.weight.numpy().T
    routing = top_k.top_k_router(logits, 1, score="sigmoid")
    wanted = experts.input_gated_ffn(params, x, routing.expert, routing.gate, activation="swiglu")
    size = np.abs(wanted).max() + np.abs(found).max()
    scale = UNIT["float32"] * size  # their sigmoid is float32
    assert_close_bounded("experts.routed_ffn", found, wanted, scale, what="layer of Llama 4")
    other = experts.routed_ffn(params, x, routing.expert, routing.gate, activation="swiglu").output
    assert np.abs(other - wanted).max() > 0.01 * size


@pytest.mark.parametrize("activation, theirs", [("relu", "relu"), ("gelu", "gelu_pytorch_tanh")])
def test_the_latent_layer_of_nemotron_h(activation, theirs):
    """Compare a whole routed block: sigmoid scores with a bias, groups, a latent width and a shared expert."""
    from transformers.models.nemotron_h import modeling_nemotron_h as module

    fields = dict(router="top_k", experts=4, granularity=2, k=1, gate="sigmoid", gate_scale=2.5, expert_groups=4)
    fields |= dict(groups_per_token=2, bias_rate=0.1, latent_width=6, shared_experts=2, activation=activation)
    model = ModelConfig(d_model=D, heads=2, blocks=2, **fields)
    sizes = dict(hidden_size=D, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=2 * D, n_group=4)
    sizes |= dict(topk_group=2, routed_scaling_factor=2.5, moe_latent_size=6, mlp_hidden_act=theirs)
    layer = module.NemotronHMoE(transformers.NemotronHConfig(**sizes, moe_shared_expert_intermediate_size=4 * D))
    with torch.no_grad():
        for weight in [*layer.double().parameters(), layer.gate.e_score_correction_bias]:
            weight.copy_(torch.tensor(exact(*weight.shape) / 4))
        x = exact(1, T, D)
        found = layer(torch.tensor(x))[0].numpy()
        weights = {name: leaf.numpy().mT for name, leaf in layer.named_parameters()}
    names = {"up": "experts.up_proj", "down": "experts.down_proj", "router": "gate.weight"}
    names |= {"latent_down": "fc1_latent_proj.weight", "latent_up": "fc2_latent_proj.weight"}
    params = {ours: weights[name] for ours, name in names.items()}
    params["shared"] = {name: weights[f"shared_experts.{name}_proj.weight"] for name in ("up", "down")}
    params["bias"] = layer.gate.e_score_correction_bias.numpy()
    wanted = routed_block.routed_block(params, x, np.zeros((1, T), int), model)
    assert len(set(wanted.routing.expert.ravel())) > 2
    scale = UNIT["float32"] * np.abs(wanted.output).max()  # their scores are float32
    assert_close_bounded("experts.routed_ffn", found, wanted.output[0], scale, what="layer of NemotronH")
    dense = ModelConfig(d_model=D, heads=2, blocks=2, activation=activation).accounting(8).total_parameters
    assert sum(leaf.size for leaf in weights.values()) == model.accounting(8).total_parameters - dense + 2 * 4 * D * D


def test_the_layer_of_longcat_flash():
    """Four real and three identity experts: a softmax over seven, a bias, and gates that do not sum to 1."""
    from transformers.models.longcat_flash import modeling_longcat_flash as module

    model = ModelConfig(
        d_model=D, heads=2, blocks=2, router="top_k", experts=4, k=3, normalisation="none", gate_scale=6.0,
        bias_rate=0.1, zero_experts=3, activation="swiglu",
    )  # fmt: skip
    sizes = dict(hidden_size=D, n_routed_experts=4, zero_expert_num=3, moe_topk=3, expert_ffn_hidden_size=3 * D)
    layer = module.LongcatFlashMoE(transformers.LongcatFlashConfig(**sizes)).double()
    with torch.no_grad():
        for weight in [*layer.parameters(), layer.router.e_score_correction_bias]:
            weight.copy_(torch.tensor(exact(*weight.shape) / 4))
        x = exact(1, T, D)
        found = layer(torch.tensor(x))[0].numpy()
        both, down = layer.experts.gate_up_proj.numpy().mT[:4], layer.experts.down_proj.numpy().mT
        router = layer.router.classifier.weight.numpy().T
    params = {"up": both[..., : 3 * D], "linear": both[..., 3 * D :], "down": down, "router": router}
    params["bias"] = layer.router.e_score_correction_bias.numpy()
    wanted = routed_block.routed_block(params, x, np.zeros((1, T), int), model)
    real = (wanted.routing.expert < 4).sum(axis=1)
    assert real.min() < real.max()
    scale = UNIT["float32"] * np.abs(wanted.output).max()  # their scores are float32
    assert_close_bounded("experts.routed_ffn", found, wanted.output[0], scale, what="layer of LongCat-Flash")


def test_the_balance_loss_of_transformers_is_k_at_balance():
    """The designs multiply their weights by this factor. transformers uses the dialect "tokens"."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    z = exact(T, 8)
    theirs = float(load_balancing_loss_func((torch.tensor(z, dtype=torch.float32),), num_experts=8, top_k=2))
    expert = np.argsort(-z, axis=1)[:, :2]
    wanted = balance.auxiliary_loss(z, expert, dialect="tokens").loss
    unit = UNIT["float32"] * (4 + 2 * np.abs(z).max())
    assert_close_bounded("balance.loss", theirs, wanted, unit * wanted, what="load_balancing_loss_func")
    ours = balance.auxiliary_loss(z, expert).loss
    assert_close_bounded("balance.loss", wanted, 2 * ours, UNIT["float64"] * wanted, what="k times ours")
