"""Guess rates of well-known tasks: one over the number of choices.

The whole name identifies a task, as in lm-evaluation-harness, LLM Foundry and leaderboards. A prefix does not: mmlu has
four choices and mmlu_pro ten. Tasks such as mmlu_generative and boolq_cot have generated answers, so a guess is almost
never right. The numbers of choices are from lm-evaluation-harness.

A lookup ignores case and treats hyphens and blanks as underscores. It also ignores three parts of a name: a metric that
ranks choices ("hellaswag acc_norm"), the number of shots (mmlu_5shot, hellaswag_zeroshot) and a version (arc_easy_v2,
piqa:0).
"""

import re

_MMLU = """
    abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
    econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
    high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
    high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
    high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
    human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management marketing
    medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory
    professional_accounting professional_law professional_medicine professional_psychology public_relations
    security_studies sociology us_foreign_policy virology world_religions
    stem humanities social_sciences other
""".split()  # fmt: skip
_MMLU_PRO = """
    biology business chemistry computer_science economics engineering health history law math other philosophy physics
    psychology
""".split()  # fmt: skip

_BY_CHOICES = {
    2: """
        piqa copa winogrande winograd wsc273 wsc boolq rte sglue_rte wic wnli qnli mrpc qqp sst2 blimp storycloze
        storycloze_2016 storycloze_2018 toxigen
    """,
    3: "siqa social_iqa socialiqa cb mnli mnli_mismatch anli_r1 anli_r2 anli_r3 pubmedqa",
    4: """
        arc_easy arc_challenge ai2_arc hellaswag openbookqa openbook_qa sciq mmlu mmlu_continuation race swag logiqa
        logi_qa logiqa2 medmcqa medqa_4options prost gpqa gpqa_main gpqa_diamond gpqa_extended leaderboard_gpqa
        leaderboard_gpqa_main leaderboard_gpqa_diamond leaderboard_gpqa_extended
    """,
    5: "commonsense_qa commonsenseqa csqa mathqa math_qa",
    10: "mmlu_pro leaderboard_mmlu_pro",
}
_GENERATED = """
    lambada lambada_openai lambada_standard gsm8k triviaqa nq_open webqs drop squad squadv2 coqa humaneval mbpp
    jeopardy svamp
"""

GUESS_RATES = {
    **{name: 1 / choices for choices, names in _BY_CHOICES.items() for name in names.split()},
    **{f"mmlu_{subject}": 1 / 4 for subject in _MMLU},
    **{f"mmlu_pro_{subject}": 1 / 10 for subject in _MMLU_PRO},
    **dict.fromkeys(_GENERATED.split(), 0.0),
}
"""{task: guess rate}; generated answers have rate 0."""

_LEFT_ASIDE = (
    re.compile(r"^(acc_)?norm_|_acc(_norm)?(,none)?$"),
    re.compile(r"(_(v|version_?)\d[\d.]*|:\d+)$"),
    re.compile(r"_(\d+|n|zero|few)_?shot$"),
)


def guess_rate(task: str, rates: dict[str, float] | None = None) -> float | None:
    """Return the guess rate of a task from a table or from GUESS_RATES, or None."""
    if rates and task in rates:
        return rates[task]
    name, before = re.sub(r"[\s_-]+", "_", task.strip().casefold()), None
    while name != before:
        if name in GUESS_RATES:
            return GUESS_RATES[name]
        before = name
        for pattern in _LEFT_ASIDE:
            name = pattern.sub("", name)
    return None
