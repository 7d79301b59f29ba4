"""Routers inside libraries of models, as backends of the suite: see `backends.py`."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import backends
import numpy as np
import torch
from backends import _backend as backend
from backends import _eye, _only, named

from routelaws.conformance.adapters import blocks, torch_modules


class _Anything(type):
    def __getattr__(cls, name: str):
        return _Nothing


class _Nothing(metaclass=_Anything):
    """A base class, and a function whose answer is false."""

    def __init__(self, *arguments, **options):
        pass

    def __bool__(self):
        return False


class _Absent(ModuleType):
    """A substitute for a module that the tested code imports but does not need."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


def _absent(*names: str) -> None:
    sys.modules.update({name: _Absent(name) for name in names})


def _bare(*packages: str) -> None:
    """Let submodules of packages be imported without the packages' own imports, which may need a GPU."""
    for name in packages:
        places = importlib.util.find_spec(name).submodule_search_locations
        _absent(name)
        sys.modules[name].__path__ = list(places)


def mistral_inference() -> dict:
    from mistral_inference.moe import MoeArgs, MoeLayer

    def run(planted, k):
        size = planted.router.shape[1]
        gate = torch.nn.Linear(size + 1, size, bias=False)
        layer = MoeLayer(_numbers(size, size + 1), gate, MoeArgs(size, k))
        torch_modules.put(layer, gate__weight=torch.from_numpy(planted.router.T.copy()))
        return layer(torch.from_numpy(planted.x))

    return {"MoeLayer": backend("mistral-inference", blocks.layer(run))}


class _Number(torch.nn.Module):
    """An expert that returns its number, as a unit vector."""

    def __init__(self, number: int, width: int):
        super().__init__()
        self.register_buffer("answer", torch.eye(width)[number])

    def forward(self, x):
        return self.answer.to(x.dtype).repeat(len(x), 1)


def _numbers(size: int, width: int) -> list:
    return [_Number(number, width) for number in range(size)]


def _fill(size: int, groups: int) -> None:
    if size % groups or groups > 1 and size // groups < 2:
        raise NotImplementedError(f"{size} experts in {groups} groups")


def litgpt() -> dict:
    _bare("litgpt")
    _absent("litgpt.scripts", "litgpt.scripts.convert_hf_checkpoint")
    from litgpt.config import Config
    from litgpt.model import GroupedTopkRouter, LLaMAMoE

    def config(size, k, width, groups=None, taken=None):
        return Config(
            n_embd=width, n_head=1, n_layer=1, n_expert=size, n_expert_per_token=k, mlp_class_name="LLaMAMoE",
            intermediate_size=2 * size + 3, moe_intermediate_size=2 * size + 3, n_expert_groups=groups,
            n_topk_groups=taken, n_topk_scores_per_group=2, norm_topk_prob=True,
        )  # fmt: skip

    def run(planted, k):
        size = planted.router.shape[1]
        layer = torch_modules.plant(LLaMAMoE(config(size, k, size + 1)), size, size + 1, 2 * size + 3)
        return layer(torch.from_numpy(planted.x)[None])

    def grouped(logits, k, *, bias=None):
        size = logits.shape[1]
        _fill(size, 2)
        router = GroupedTopkRouter(config(size, k, size, 2, 1))
        router = torch_modules.put(router, weight=_eye(logits))
        if bias is not None:
            router.e_score_correction_bias.copy_(bias)
        return router(logits)

    return {
        "LLaMAMoE": backend("litgpt", blocks.layer(run)),
        "GroupedTopkRouter, 2 groups": backend("litgpt", grouped),
    }


def torchscale() -> dict:
    from torchscale.component.xmoe import routing as library

    return _fairseq_gates("torchscale", library)


def _fairseq_gates(package: str, library) -> dict:
    """Return the gates of fairseq's MoE branch, which several libraries have copied."""
    histogram = torch.histc
    torch.histc = lambda counts, **options: histogram(counts.float(), **options)  # CPUs lack this for integers

    def gate(kind, logits, k, capacity=None, mask=None, **options):
        _only(k, 1 if kind is library.Top1Gate else 2)
        share = 1.0 if capacity is None else capacity / len(logits)
        made = kind(logits.shape[1], logits.shape[1], moe_eval_capacity_token_fraction=share, **options)
        torch_modules.put(made, wg__weight=_eye(logits))
        return made(logits, None if mask is None else ~mask)

    def combine(kind, **options):
        def route(logits, k, *, mask=None):
            return gate(kind, logits, k, mask=mask, **options)[1]

        return route

    def drop(kind, **options):
        return lambda logits, k, capacity: gate(kind, logits, k, capacity - 0.5, **options)[1]

    def loss(kind, **options):
        return lambda logits, experts: gate(kind, logits, experts.shape[1], **options)[0]

    def of(kind, **options):
        return backend(package, combine(kind, **options), dispatch=drop(kind, **options), loss=loss(kind, **options))

    return {
        "Top1Gate.eval()": of(library.Top1Gate),
        "Top2Gate.eval()": of(library.Top2Gate),
        "Top2Gate.eval(), policy all": of(library.Top2Gate, second_expert_policy="all"),
    }


def diffusers() -> dict:
    from diffusers.models.transformers.transformer_hidream_image import MoEGate

    def made(logits, k):
        return torch_modules.put(MoEGate(logits.shape[1], logits.shape[1], k, 1.0), weight=_eye(logits))

    def route(logits, k):
        experts, gates, _ = made(logits, k)(logits[None])
        return gates, experts

    def loss(logits, experts):
        return made(logits, experts.shape[1]).train()(logits[None])[2]

    return {"MoEGate": backend("diffusers", route, loss=loss)}


def uni2ts() -> dict:
    from uni2ts.module.ffn import MoEFeedForward

    def route(logits, k):
        """Its logits are distances to centroids. Here tokens are at 0, and each has its own centroids."""
        size = logits.shape[1]
        layer = MoEFeedForward(size, k, size).eval()
        layer.experts = torch.nn.ModuleList(_numbers(size, size))
        away = torch.nn.functional.pad((logits - logits.min(1, keepdim=True).values)[..., None], (0, size - 1))
        zero = torch.zeros(1, 1, size, dtype=logits.dtype)
        return torch.cat([layer(zero, centroid)[0] for centroid in away])

    return {"MoEFeedForward": backend("uni2ts", route)}


def switch_transformers() -> dict:
    _absent("zeta", "zeta.nn")
    from switch_transformers.model import SwitchGate

    def route(logits, k):
        _only(k, 1)
        size = logits.shape[1]
        gate = torch_modules.put(SwitchGate(size, size), w_gate__weight=_eye(logits))
        gate.w_gate.bias.data.zero_()
        return gate(logits)[0]

    return {"SwitchGate": backend("switch-transformers", route)}


def mixlora() -> dict:
    from mixlora.config import MixLoraConfig
    from mixlora.model import MixLoraSparseMoe

    class Layer(MixLoraSparseMoe):
        def _llama_forward(self, expert_mask, hidden_states, input_dtype):
            width = hidden_states.shape[1]
            return [
                _numbers(self.num_experts_, width)[e](hidden_states[torch.where(expert_mask[e])[1]])
                for e in range(self.num_experts_)
            ]

    def of(jitter):
        def run(planted, k):
            size = planted.router.shape[1]
            config = MixLoraConfig(
                num_experts_=size, top_k_=k, model_type_="llama", act_fn_="silu", dtype_=torch.float32,
                jitter_noise_=jitter,
            )  # fmt: skip
            layer = Layer(torch.nn.Identity(), config).eval()
            layer.gate_ = torch.from_numpy(planted.router.T.copy())
            return layer(torch.from_numpy(planted.x)[None])

        return backend("mixlora", blocks.layer(run))

    return {"MixLoraSparseMoe": of(0.0), "MixLoraSparseMoe.eval(), jitter_noise 0.1": of(0.1)}


def nemo_automodel() -> dict:
    from nemo_automodel.components.moe.config import MoEConfig
    from nemo_automodel.components.moe.layers import Gate

    def gate(logits, k, bias=None, groups=1, **options):
        size = logits.shape[1]
        _fill(size, groups)
        config = MoEConfig(
            n_routed_experts=size, n_shared_experts=0, n_activated_experts=k, n_expert_groups=groups,
            n_limited_groups=1, train_gate=True, gate_bias_update_factor=0.0, aux_loss_coeff=0.0,
            route_scale=1.0, dim=size, inter_dim=size, moe_inter_dim=size, dtype=torch.float32,
            force_e_score_correction_bias=bias is not None, **options,
        )  # fmt: skip
        made = torch_modules.put(Gate(config), weight=_eye(logits))
        if bias is not None:
            made.e_score_correction_bias.copy_(bias)
        return made(logits, torch.ones(len(logits), dtype=torch.bool), None)[:2]

    def plain(**options):
        return backend("nemo-automodel", lambda logits, k: gate(logits, k, **options))

    def biased(**options):
        def route(logits, k, *, bias=None):
            return gate(logits, k, torch.zeros(logits.shape[1]) if bias is None else bias, 2, **options)

        return backend("nemo-automodel", route)

    return {
        "Gate, softmax": plain(score_func="softmax", norm_topk_prob=False),
        "Gate, softmax_before_topk": plain(score_func="softmax", softmax_before_topk=True, norm_topk_prob=True),
        "Gate, sigmoid, 2 groups": biased(score_func="sigmoid", norm_topk_prob=True),
        "Gate, sigmoid_with_bias, 2 groups": biased(score_func="sigmoid_with_bias", norm_topk_prob=True),
        "Gate, softmax_with_bias, 2 groups": biased(score_func="softmax_with_bias", norm_topk_prob=True),
    }


def nano_moe_jax() -> dict:
    from nano_moe.layers import Router

    def call(logits, k):
        weight = {"params": {"Dense_0": {"kernel": np.eye(logits.shape[1], dtype=logits.dtype)}}}
        return Router(logits.shape[1], k).apply(weight, np.asarray(logits)[None])

    def route(logits, k):
        gates, experts, _ = call(logits, k)
        return np.asarray(gates[0]), np.asarray(experts[0])

    def loss(logits, experts):
        return float(call(logits, experts.shape[1])[2])

    return {"Router": blocks.backend(route, name=named("nano-moe-jax"), loss=loss)}


def google_tunix() -> dict:
    import jax.numpy as jnp
    from flax import nnx

    _bare("tunix")
    from tunix.models.qwen3 import model as qwen3

    def run(planted, k):
        size, d_model = planted.router.shape[1], planted.router.shape[0]
        config = SimpleNamespace(
            shd_config=qwen3.ShardingConfig.get_default_sharding(), num_experts_per_tok=k, num_experts=size,
            embed_dim=d_model, hidden_dim=1, dtype=jnp.float32, param_dtype=jnp.float32,
        )  # fmt: skip
        layer = qwen3.MoELayer(config, rngs=nnx.Rngs(0))
        layer.router.kernel = nnx.Param(jnp.asarray(planted.router))
        for name in ("up", "down"):
            setattr(layer, f"{name}_proj", nnx.Param(jnp.asarray(getattr(planted, name))))
        layer.gate_proj = nnx.Param(jnp.asarray(planted.linear * blocks.ANSWER))
        layer.up_proj = nnx.Param(jnp.asarray(planted.linear))
        return np.asarray(layer(jnp.asarray(planted.x)[None]))

    return {"qwen3.MoELayer": blocks.backend(blocks.layer(run), name=named("google-tunix"))}


def praxis() -> dict:
    import jax
    import jax.numpy as jnp

    _absent("praxis.pytypes")
    from praxis import gshard_utils as library

    def gate(logits, k, capacity=None, mask=None, **options):
        _only(k, 2)
        size = logits.shape[1]
        padding = None if mask is None else 1.0 - np.asarray(mask, "float32")[None]
        return library.top2_gating_on_logits(
            padding, jnp.asarray(logits)[None], size, capacity or len(logits), jnp.float32,
            prng_key=jax.random.PRNGKey(0), **options,
        )  # fmt: skip

    def of(**options):
        def route(logits, k, *, mask=None):
            return np.asarray(gate(logits, k, mask=mask, **options)[1][0])

        return blocks.backend(
            route, name=named("praxis"),
            dispatch=lambda logits, k, capacity: np.asarray(gate(logits, k, capacity, **options)[1][0]),
            loss=lambda logits, experts: float(gate(logits, 2, **options)[0]),
        )  # fmt: skip

    return {
        "top2_gating_on_logits": of(),
        "top2_gating_on_logits, legacy_mtf_behavior=False": of(legacy_mtf_behavior=False),
    }


def mlx_lm() -> dict:
    import mlx.core as mx
    from mlx_lm.models import deepseek_v3, mixtral, phimoe, qwen3_moe

    def layer(kind, **options):
        def run(planted, k):
            size, d_model = planted.router.shape[1], planted.router.shape[0]
            arguments = {
                "hidden_size": d_model, "intermediate_size": 1, "moe_intermediate_size": 1, "num_local_experts": size,
                "num_experts": size, "num_experts_per_tok": k, "router_jitter_noise": 0.01, **options,
            }  # fmt: skip
            made = kind(SimpleNamespace(**arguments))
            made.gate.weight = mx.array(planted.router.T)
            experts = made.switch_mlp
            experts.gate_proj.weight, experts.up_proj.weight, experts.down_proj.weight = (
                mx.array(np.swapaxes(one, 1, 2)) for one in (planted.up, planted.linear, planted.down)
            )
            return np.array(made(mx.array(planted.x)[None]))

        return blocks.backend(blocks.layer(run), name=named("mlx-lm"))

    def select(groups):
        def route(logits, k, *, bias=None):
            _fill(logits.shape[1], groups)
            bias = np.zeros(logits.shape[1], "float32") if bias is None else bias
            experts, gates = deepseek_v3.group_expert_select(mx.array(logits), mx.array(bias), k, groups, 1, 1.0, True)
            return np.array(gates), np.array(experts).astype(int)

        return blocks.backend(route, name=named("mlx-lm"))

    return {
        "mixtral.MixtralSparseMoeBlock": layer(mixtral.MixtralSparseMoeBlock),
        "qwen3_moe.Qwen3MoeSparseMoeBlock": layer(qwen3_moe.Qwen3MoeSparseMoeBlock, norm_topk_prob=False),
        "phimoe.PhiMoESparseMoeBlock": layer(phimoe.PhiMoESparseMoeBlock),
        "deepseek_v3.group_expert_select": select(1),
        "deepseek_v3.group_expert_select, 2 groups": select(2),
    }


def sglang() -> dict:
    _bare("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.moe")
    _absent(
        "triton", "triton.language", "sglang.kernels.fused_op", "sglang.kernels.ops.moe.dsv4",
        "sglang.kernels.ops.moe.fill_padded_rows", "sglang.srt.configs.shared_experts", "sglang.srt.runtime_context",
        "sglang.srt.distributed.device_communicators.pynccl_allocator", "sglang.srt.environ", "sglang.srt.eplb",
        "sglang.srt.eplb.expert_distribution", "sglang.srt.eplb.expert_location_dispatch", "sglang.srt.utils",
        "sglang.srt.layers.dp_attention", "sglang.srt.layers.moe.utils", "sglang.srt.model_executor.forward_context",
        "sglang.srt.state_capturer.routed_experts",
    )  # fmt: skip
    torch.compile = lambda **options: lambda function: function
    library = importlib.import_module("sglang.srt.layers.moe.topk")

    def grouped(logits, k):
        _fill(logits.shape[1], 2)
        return library.grouped_topk_gpu(logits, logits, k, True, 2, 1)

    def biased(logits, k, *, bias=None):
        size = logits.shape[1]
        _fill(size, 2)
        bias = torch.zeros(size) if bias is None else bias
        return library.biased_grouped_topk_impl(logits, logits, bias, k, True, 2, 1)

    def native(**options):
        return lambda logits, k: library.fused_topk_torch_native(logits, logits, k, True, **options)

    return {
        "fused_topk_torch_native": backend("sglang", native()),
        "fused_topk_torch_native, sigmoid": backend("sglang", native(scoring_func="sigmoid")),
        "grouped_topk_gpu, 2 groups": backend("sglang", grouped),
        "biased_grouped_topk_impl, 2 groups": backend("sglang", biased),
    }


def esmoe() -> dict:
    from esmoe import ESMoE, switch_balance

    def route(logits, k):
        """Each image is one token. Its router sees the mean over pixels, so one pixel holds the logits."""
        size = logits.shape[1]
        layer = ESMoE(size, k, channels=size).eval()
        layer.router = torch.nn.Flatten()
        layer.experts = torch.nn.ModuleList(
            torch.nn.Sequential(number, torch.nn.Unflatten(1, (size, 1, 1))) for number in _numbers(size, size)
        )
        return layer(logits[:, :, None, None])[:, :, 0, 0]

    def loss(logits, experts):
        return switch_balance(logits.softmax(1), torch.zeros_like(logits).scatter(1, experts, 1.0))

    return {"ESMoE": backend("esmoe", route, loss=loss)}


def zetascale() -> dict:
    _bare("zeta", "zeta.nn", "zeta.nn.modules")
    _absent("zeta.ops", "zeta.ops.sparsemax", "colt5_attention")
    sys.modules["colt5_attention"].topk = lambda x, k, **options: x.topk(k)
    from zeta.nn.modules.moe_router import MoERouter
    from zeta.nn.modules.sparse_moe import Top2Gating
    from zeta.nn.modules.top_n_gating import TopNGating

    def route(logits, k):
        size = logits.shape[1]
        router = torch_modules.put(
            MoERouter(size, size), layers__0__weight=_eye(logits), layers__0__bias=torch.zeros(size)
        )
        return router(logits[None])[0]

    return {
        "MoERouter": backend("zetascale", route),
        **_fairseq_gates("zetascale", importlib.import_module("zeta.nn.modules.g_shard_moe")),
        **backends.top_2_gating("zetascale", Top2Gating),
        **backends.top_n_gating("zetascale", TopNGating),
    }


def latent_moe() -> dict:
    from latent_moe import LatentMoE, LatentMoEConfig

    def made(logits, k):
        size = logits.shape[1]
        options = {"n_experts": size, "top_k": k, "alpha": 1, "n_shared": 0, "aux_loss_coef": 1.0, "z_loss_coef": 1.0}
        return torch_modules.put(LatentMoE(LatentMoEConfig(size, 4, **options)), router__weight=_eye(logits))

    def route(logits, k):
        layer = made(logits, k)
        experts, gates, _ = layer._route(layer.router(logits))
        return gates, experts

    def losses(logits, experts):
        return made(logits, experts.shape[1])._balancing_losses(logits, logits.softmax(1), experts)

    z_loss = lambda z: losses(z, z.topk(1).indices)[1]  # noqa: E731
    return {"LatentMoE": backend("latent-moe", route, loss=lambda *both: losses(*both)[0], z_loss=z_loss)}


def deepsuite() -> dict:
    _bare("deepsuite", "deepsuite.layers")
    from deepsuite.layers.moe import AuxiliaryLossFreeRouter

    def route(logits, k, *, bias=None):
        size = logits.shape[1]
        router = torch_modules.put(AuxiliaryLossFreeRouter(size, size, k), gate__weight=_eye(logits))
        if bias is not None:
            router.expert_bias.data.copy_(bias)
        gates, experts, _ = router(logits[None])
        return gates[0], experts[0]

    return {"AuxiliaryLossFreeRouter": backend("deepsuite", route)}


def sparrow_mlp() -> dict:
    from sparrow.config import SparrowConfig
    from sparrow.layers import MoELayer

    def route(logits, k):
        _only(k, 1)
        size = logits.shape[1]
        layer = MoELayer(SparrowConfig(hidden_dim=size, num_experts=size)).eval()
        layer.router, layer.experts = torch.nn.Identity(), torch.nn.ModuleList(_numbers(size, size))
        return layer(logits)[0]

    return {"MoELayer.eval()": backend("sparrow-mlp", route)}


def mergoo() -> dict:
    from mergoo.compose_layers import MoeLayer

    return {"MoeLayer": _of_numbers("mergoo", lambda d, size, k: MoeLayer(d, d, False, size, k))}


def opennmt_py() -> dict:
    _bare("onmt", "onmt.modules")
    from onmt.modules.moe import MoE

    return {
        "MoE": _of_numbers("OpenNMT-py", lambda d, size, k: MoE(size, k, d, 1, 0, "relu", False, False, "rms", 1e-6))
    }


def _of_numbers(package: str, make):
    """Return the backend of a layer with a matrix `gate` and a list `experts`."""

    def run(planted, k):
        layer = make(*planted.router.shape, k)
        layer.experts = torch.nn.ModuleList(_numbers(planted.router.shape[1], planted.router.shape[0]))
        torch_modules.put(layer, gate__weight=torch.from_numpy(planted.router.T.copy()))
        return layer(torch.from_numpy(planted.x)[None])[0]

    return backend(package, blocks.layer(run))


def moe_peft() -> dict:
    _bare("moe_peft", "moe_peft.adapters", "moe_peft.adapters.mola")
    _absent("moe_peft.common", "moe_peft.adapters.mola.config")
    sys.modules["moe_peft.common"].LLMMoeBlock = torch.nn.Module
    library = importlib.import_module("moe_peft.adapters.mola.model")

    def route(logits, k):
        size = logits.shape[1]
        config = SimpleNamespace(adapter_name="a", num_experts_=size, top_k_=k, router_init_range_=5.0)
        loras = {f"moe.a.experts.{e}": SimpleNamespace(lora_forward=one) for e, one in enumerate(_numbers(size, size))}
        layer = library.MolaSparseMoe(size, "cpu", config, gate=_eye(logits))
        linear = SimpleNamespace(out_features_=size, loras_=loras)
        return layer(torch.zeros(1, *logits.shape), logits[None], linear)[0]

    def loss(logits, experts, mask=None):
        mask = None if mask is None else mask[None].float()
        return library._mixtral_load_balancing_loss_func(logits, logits.shape[1], experts.shape[1], mask)

    return {"MolaSparseMoe": backend("moe-peft", route, loss=loss)}


LIBRARIES = backends.LIBRARIES | {
    "mistral-inference": mistral_inference, "litgpt": litgpt, "torchscale": torchscale, "diffusers": diffusers,
    "uni2ts": uni2ts, "nemo-automodel": nemo_automodel, "switch-transformers": switch_transformers, "mixlora": mixlora,
    "sglang": sglang, "mlx-lm": mlx_lm, "nano-moe-jax": nano_moe_jax, "google-tunix": google_tunix, "praxis": praxis,
    "esmoe": esmoe, "zetascale": zetascale, "latent-moe": latent_moe, "deepsuite": deepsuite, "mergoo": mergoo,
    "sparrow-mlp": sparrow_mlp, "opennmt-py": opennmt_py, "moe-peft": moe_peft,
}  # fmt: skip
