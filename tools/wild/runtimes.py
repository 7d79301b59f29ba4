"""Runtimes, exporters and compilers that run a router, as backends of the suite. Each function imports its own library.

A runtime that compiles a file for each number of experts and each k has it built once, by `blocks.by_size`.
"""

import functools
import json

import numpy as np
import torch
from backends import named

from routelaws.conformance.adapters import blocks, torch_modules

WIDTH = 32
"""Widths are multiples of this number, which quantised kernels need."""


SIZES = {(8, 1), (8, 2), (64, 8), (300, 4)}
"""The (E, k) of programs that compile for each size, which takes seconds."""


class Router(torch.nn.Module):
    """A router as people write it: softmax over the chosen experts."""

    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, logits):
        values, experts = torch.topk(logits, self.k)
        return values.softmax(-1), experts


def _torch_backend(build):
    return blocks.backend(
        blocks.by_size(build, SIZES), name=f"torch {torch.__version__}", convert=torch_modules.from_numpy
    )


def of_torch() -> dict:
    return {
        "eager": _torch_backend(lambda num_experts, k: Router(k)),
        "compile": _torch_backend(lambda num_experts, k: torch.compile(Router(k), dynamic=True)),
    }


def onnxruntime() -> dict:
    import onnx
    import onnxruntime as library
    from onnx import TensorProto, helper

    options = library.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3

    def session(model):
        return library.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def exported(num_experts, k):
        shapes = ({0: torch.export.Dim("T", min=2)},)
        program = torch.onnx.export(
            Router(k), (torch.zeros(4, num_experts),), dynamo=True, dynamic_shapes=shapes, verbose=False
        )
        made = session(program.model_proto)
        return lambda logits: tuple(made.run(None, {made.get_inputs()[0].name: logits}))

    def node(operator: str, inputs: list, **attributes):
        """Return a session with one operator, whose inputs are {name: type}."""
        given = [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs if name]
        output = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        names = [name for name, _ in inputs]
        graph = helper.make_graph(
            [helper.make_node(operator, names, ["y"], domain="com.microsoft", **attributes)], "g", given, output
        )
        sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return session(helper.make_model(graph, opset_imports=sets, ir_version=10))

    @functools.cache
    def moe(k, normalise):
        inputs = [(name, TensorProto.FLOAT) for name in ("x", "logits", "up", "", "down")]
        return node("MoE", inputs, k=k, activation_type="relu", normalize_routing_weights=normalise)

    @functools.cache
    def qmoe(k, normalise, weighted):
        kinds = {"up": TensorProto.UINT8, "down": TensorProto.UINT8}
        names = ("x", "logits", "up", "up_scale", "", "down", "down_scale", *[""] * 7, *weighted * ["router_weights"])
        inputs = [(name, kinds.get(name, TensorProto.FLOAT)) for name in names]
        return node(
            "QMoE", inputs, k=k, activation_type="relu", normalize_routing_weights=normalise, expert_weight_bits=8
        )

    def layer(normalise):
        def run(planted, k):
            logits = planted.x @ planted.router
            up, down = (np.ascontiguousarray(each.swapaxes(1, 2)) for each in (planted.up, planted.down))
            return moe(k, normalise).run(None, {"x": planted.x, "logits": logits, "up": up, "down": down})[0]

        return blocks.backend(blocks.layer(run, d_ff=WIDTH, multiple=WIDTH), name=named("onnxruntime"))

    def quantised(normalise, router_weights):
        def stored(weights):
            scale = np.abs(weights).max(axis=2) / 64
            levels = np.rint(weights / np.where(scale == 0, 1, scale)[:, :, None]) + 128
            return levels.astype(np.uint8), scale.astype(np.float32)

        def run(planted, k):
            up, down = (stored(each.swapaxes(1, 2)) for each in (planted.up, planted.down))
            inputs = {"x": planted.x, "logits": planted.x @ planted.router, "up": up[0], "up_scale": up[1]}
            inputs |= {"down": down[0], "down_scale": down[1]}
            inputs |= {} if router_weights is None else {"router_weights": router_weights}
            return qmoe(k, normalise, router_weights is not None).run(None, inputs)[0]

        return run

    def qmoe_route(logits, k, *, normalisation="none", router_weights=None):
        if normalisation not in ("none", "sum"):
            raise NotImplementedError(f"normalisation {normalisation}")
        run = quantised(int(normalisation == "sum"), router_weights)
        return blocks.layer(run, d_ff=WIDTH, multiple=WIDTH)(logits, k)

    def exported_backend():
        return blocks.backend(blocks.by_size(exported, SIZES), name=f"{named('onnxruntime')}, onnx {onnx.__version__}")

    return {
        "export": exported_backend(),
        "MoE": layer(0),
        "MoE, normalised": layer(1),
        "QMoE": blocks.backend(qmoe_route, name=named("onnxruntime")),
        "QMoE, normalised": blocks.backend(
            functools.partial(qmoe_route, normalisation="sum"), name=named("onnxruntime")
        ),
    }


class Layer(torch.nn.Module):
    """A layer of transformers behind its weights, for programs that convert modules."""

    def __init__(self, planted, k: int):
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

        super().__init__()
        (width, num_experts), d_ff = planted.router.shape, planted.up.shape[2]
        config = MixtralConfig(
            hidden_size=width, intermediate_size=d_ff, num_local_experts=num_experts, num_experts_per_tok=k
        )
        config._experts_implementation = "batched_mm"
        self.block = torch_modules.plant(MixtralSparseMoeBlock(config), num_experts, width, d_ff, planted)

    def forward(self, x):
        return self.block(x[None])[0]


def openvino() -> dict:
    import openvino as library

    def layer(**hints):
        def run(planted, k):
            if (planted.router.shape[1], k) not in SIZES or planted.router.shape[1] > 64:
                raise NotImplementedError("a size that this adapter does not convert")
            key = k, *(each.tobytes() for each in planted[1:])
            if key not in files:
                model = library.convert_model(
                    Layer(planted, k), example_input=torch.from_numpy(planted.x), input=[-1, planted.x.shape[1]]
                )
                files[key] = library.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, **hints})
            return files[key](planted.x)[0]

        files = {}
        return blocks.backend(blocks.layer(run, d_ff=24, multiple=8), name=named("openvino"))

    return {"default": layer(), "f32": layer(INFERENCE_PRECISION_HINT="f32")}


def llama_cpp() -> dict:
    import tempfile

    import gguf
    import xllamacpp as library

    width = 256

    def written(path, logits, k, architecture, options):
        """Write a model of one block, whose token t is 16 times unit vector t, so that RMS normalisation keeps it."""
        num_tokens, num_experts = logits.shape
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(1), writer.add_context_length(512), writer.add_embedding_length(width)
        writer.add_feed_forward_length(32), writer.add_expert_feed_forward_length(32)
        writer.add_head_count(4), writer.add_head_count_kv(4), writer.add_layer_norm_rms_eps(1e-9)
        writer.add_key_length(64), writer.add_value_length(64), writer.add_rope_freq_base(1e4)
        writer.add_rope_dimension_count(64)
        writer.add_expert_count(num_experts), writer.add_expert_used_count(k), writer.add_vocab_size(width)
        for name, value in options.items():
            writer.add_bool(f"{architecture}.{name}", value)
        writer.add_tokenizer_model("llama"), writer.add_token_list([f"t{t}" for t in range(width)])
        writer.add_token_scores([0.0] * width), writer.add_token_types([1] * width)
        router = np.zeros((num_experts, width), np.float32)
        router[:, :num_tokens] = logits.T / 16
        gate, up, down = (
            np.zeros(shape, np.float32) for shape in [(num_experts, 32, width)] * 2 + [(num_experts, width, 32)]
        )
        gate[:, 0], up[:, 0] = 4, 1 / 16
        down[np.arange(num_experts), width - num_experts + np.arange(num_experts), 0] = 1 / 64
        ones, zeros = np.ones(width, np.float32), np.zeros((width, width), np.float32)
        tensors = {"token_embd": 16 * np.eye(width, dtype=np.float32), "output_norm": ones, "output": zeros}
        block = {"ffn_gate_inp": router, "ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
        block |= dict.fromkeys(("attn_norm", "ffn_norm"), ones)
        block |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), zeros)
        norm = np.ones(64 if architecture == "qwen3moe" else width, np.float32)
        block |= {} if architecture == "llama" else {"attn_q_norm": norm, "attn_k_norm": norm}
        for name, value in (tensors | {f"blk.0.{name}": value for name, value in block.items()}).items():
            writer.add_tensor(f"{name}.weight", value)
        writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
        writer.close()

    def gates(logits, k, architecture, options):
        parameters = library.CommonParams()
        parameters.embedding, parameters.warmup, parameters.verbosity = True, False, -1
        parameters.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
        parameters.n_ctx, parameters.cpuparams.n_threads = 512, 1
        with tempfile.TemporaryDirectory() as folder:
            parameters.model.path = f"{folder}/model.gguf"
            written(parameters.model.path, logits, k, architecture, options)
            server = library.Server(parameters)
            answer = server.handle_embeddings({"input": [[t] for t in range(len(logits))], "embd_normalize": -1})
            answer = json.loads(answer) if isinstance(answer, str) else answer
        rows = np.array([row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])])
        return 16 * rows[:, width - logits.shape[1] :] / rows[np.arange(len(rows)), np.arange(len(rows))][:, None]

    def backend(architecture, **options):
        def route(logits, k):
            room = width - logits.shape[1]
            if room < 1 or len(logits) > 8 * room:
                raise NotImplementedError(
                    f"{len(logits)} tokens of {logits.shape[1]} experts; allowed: {8 * max(room, 0)}"
                )
            parts = np.array_split(logits, -(-len(logits) // room))
            return np.concatenate([gates(part, k, architecture, options) for part in parts]).astype(np.float32)

        return blocks.backend(route, name=f"llama.cpp in {named('xllamacpp')}")

    return {
        "qwen3moe": backend("qwen3moe"),
        "qwen3moe, expert_weights_norm false": backend("qwen3moe", expert_weights_norm=False),
        "olmoe": backend("olmoe"),
        "llama": backend("llama"),
    }
