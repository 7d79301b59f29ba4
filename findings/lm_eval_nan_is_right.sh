#!/usr/bin/env bash
# lm-eval 0.4.13: a model whose logits are all NaN has an accuracy of 100 % on BLiMP and on TruthfulQA (mc1).
#
# A small random Mixtral has experts with large weights. In float32 it scores near chance. In float16 its experts
# overflow, and all its logits are NaN. It then scores 100 % on the tasks BLiMP and TruthfulQA mc1, here with random
# words as data. On ARC it scores the share of answers "A", which looks like chance. Nothing warns. So a checkpoint that
# diverged wins a comparison of routers on such tasks, and so does a bfloat16 one that overflows in float16.
#
# Cause: the choice is `np.argmax` of the log-likelihoods, which returns the first NaN. In BLiMP, its translations and
# TruthfulQA mc1, the first choice is always the right one. Equal log-likelihoods act the same way. TruthfulQA mc2
# returns NaN instead (issue 1340), and so do perplexities. Run one of these tasks, too, or look for NaN in the output
# of `--log_samples`.
#
# Seen with lm-eval 0.4.13, torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile lm-eval==0.4.13 torch==2.13.0 transformers==5.24.0 \
  accelerate==1.15.0
cat > "$folder/evaluate.py" <<'PYTHON'
import json
import random
import sys
from pathlib import Path

import lm_eval
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, models, pre_tokenizers

torch.set_num_threads(1)
folder = Path(sys.argv[1])
tasks = Path(lm_eval.__file__).parent / "tasks"
words = [f"w{number}" for number in range(62)]
vocabulary = {word: token for token, word in enumerate(["<pad>", "<unk>", *words])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<pad>", bos_token="<pad>"
)
draw = random.Random(0)


def sentences(count):
    return [" ".join(draw.choices(words, k=8)) for _ in range(count)]


def blimp():
    return dict(zip(("sentence_good", "sentence_bad"), sentences(2), strict=True))


def truthfulqa():
    return {"question": "w1", "mc1_targets": {"choices": sentences(4), "labels": [1, 0, 0, 0]}}


def arc():
    choices = {"text": sentences(4), "label": list("ABCD")}
    return {"question": "w1", "choices": choices, "answerKey": draw.choice("ABCD")}


FILES = {
    blimp: "blimp/_template_yaml", truthfulqa: "truthfulqa/truthfulqa_mc1.yaml", arc: "arc/arc_easy.yaml",
}
for row, file in FILES.items():  # the tasks of the harness, with data on this machine
    rows = [row() for _ in range(60)]
    data = folder / f"{row.__name__}.json"
    data.write_text("\n".join(map(json.dumps, rows)))
    (folder / f"{row.__name__}.yaml").write_text(
        f"include: {tasks / file}\ntask: local_{row.__name__}\ntag: null\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    train: {data}\n"
        "training_split: null\nvalidation_split: train\ntest_split: null\n"
    )
print(f"ARC: {sum(each['answerKey'] == 'A' for each in rows) / 60:.0%} of the right answers are A")
torch.manual_seed(3)
model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
    hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
    vocab_size=64, num_local_experts=4, max_position_embeddings=512,
)).eval()
with torch.no_grad():
    for layer in model.model.layers:
        layer.mlp.experts.gate_up_proj *= 2000
manager = TaskManager(include_path=str(folder), include_defaults=False)
for dtype in (torch.float32, torch.float16):
    nan = model.to(dtype)(torch.arange(2, 10)[None]).logits.isnan().float().mean()
    found = lm_eval.simple_evaluate(
        HFLM(model, tokenizer=tokenizer, batch_size=16, device="cpu"), tasks=[f"local_{row.__name__}" for row in FILES],
        task_manager=manager, bootstrap_iters=0,
    )["results"]
    scores = [f"{row.__name__} {found[f'local_{row.__name__}']['acc,none']:.0%}" for row in FILES]
    print(f"{str(dtype)[6:]}: {nan:.0%} of the logits are NaN; {', '.join(scores)}")
PYTHON
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$folder/home"
seen=$("$folder/venv/bin/python" -W ignore "$folder/evaluate.py" "$folder" 2> "$folder/errors" || cat "$folder/errors")
wanted='ARC: 25% of the right answers are A
float32: 0% of the logits are NaN; blimp 47%, truthfulqa 32%, arc 25%
float16: 100% of the logits are NaN; blimp 100%, truthfulqa 100%, arc 25%'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
