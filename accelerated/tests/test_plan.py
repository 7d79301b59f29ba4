"""`routelaws plan`: amounts with units, rankings of tables from known laws, and errors."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.laws import utilisation
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.choosing import resampled_losses
from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.planning import rankings
from routelaws.accelerated.results.planning.options import (
    costs_of,
    costs_of_kind,
    law_point,
    models_of_runs,
    says_tokens,
)
from routelaws.accelerated.results.planning.plan import notes
from routelaws.accelerated.results.planning.rankings import SEED, Ranking, frontier, published_rankings
from routelaws.accelerated.results.plotting import _draw_frontier
from routelaws.accelerated.results.prediction import beyond
from routelaws.accelerated.results.rows import law_columns, training_flops
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tables.selection import select_rows
from routelaws.reference.accounting import SIZES, count

SLOPE, GAIN, LEVEL = -0.08, {"Hash": -0.03, "S-Base": -0.06}, 1.05
EXPERTS = (2, 8, 32)
STEPS, BATCH, LENGTH = 1000, 64, 512
TOKENS = STEPS * BATCH * LENGTH


def log_loss(router: str, size: float, experts: float) -> float:
    return SLOPE * math.log10(size) + GAIN.get(router, 0.0) * math.log10(experts) + LEVEL


def table(noise: float = 1e-4, sizes=tuple(SIZES)[:4], **columns) -> pandas.DataFrame:
    random, rows = np.random.default_rng(1), []
    for name in sizes:
        shape = SIZES[name]
        for router, experts in [("Dense", 1), *((router, e) for router in GAIN for e in EXPERTS)]:
            model = count(*shape[:4], router_type=router, num_experts=experts)
            rows.append(
                {
                    "hyper_id": len(rows), "step": STEPS, "router_type": router, "num_experts": experts, "k": 1,
                    "d_model": shape.d_model, "num_blocks": shape.num_blocks, "num_heads": shape.num_heads,
                    "kqv_size": shape.kqv_size, "dense_parameter_count": shape.dense_parameters,
                    "total_parameter_count": model.total_parameters, "batch_size": BATCH, "sequence_length": LENGTH,
                    "flops_per_step": model.flops_per_token * BATCH * LENGTH, "vocab_size": 32_000,
                    "loss_validation": 10 ** (log_loss(router, shape[4], experts) + random.normal(0, noise)),
                }
            )  # fmt: skip
    return pandas.DataFrame(rows).assign(**columns)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "table.csv"
    table().to_csv(path, index=False)
    return path


def planned(path, budget, resamples=0, **options):
    return read(path).plan(budget, law="separable", resamples=resamples, published=False, **options)


def test_plan_and_fit_refuse_the_same_rows_in_the_same_words(tmp_path):
    def ranked():
        return planned(path, Budget(1e19)).rankings[0]

    runs, path = table(), tmp_path / "table.csv"
    dense = runs[runs["router_type"] == "Dense"]
    mine = dense.assign(router_type="Mine", hyper_id=dense["hyper_id"] + len(runs))
    pandas.concat([runs, mine]).to_csv(path, index=False)
    reason = read(path).fit("separable").not_fitted["Mine"]
    assert "its 4 rows have num_experts 1: if they are dense, router_type has to be Dense" in reason
    assert ranked().left_out["Mine"] == reason
    for nothing in (pandas.concat([dense, mine]), runs.assign(loss_validation=2.5)):
        nothing.to_csv(path, index=False)
        with pytest.raises(InputError) as of_fit:
            read(path).fit("separable")
        with pytest.raises(InputError) as of_plan:
            ranked()
        assert str(of_plan.value) == str(of_fit.value) and str(of_fit.value).startswith(f"{path}: router ")


def test_a_plan_by_hubers_sum_draws_few_resamples(path, monkeypatch):
    monkeypatch.setattr(rankings, "SLOW_RESAMPLES", 2)
    [ranking] = read(path).plan(Budget(1e18), law="routed-bounded", published=False, huber=1e-3).rankings
    assert ranking.resamples == ranking.optimum.resamples == 2


def test_a_law_without_a_size_does_not_rank_the_dense_model_by_another_law(path):
    words = "the law compute, which uses flops; .* predict TABLE --law compute --at flops=1e\\+18, or plan by a law of"
    with pytest.raises(InputError, match=words):
        read(path).plan(Budget(1e18), law="compute", resamples=0)
    own = LAWS["separable"]._replace(columns=("dense_parameters", "width"))
    with pytest.raises(InputError, match="which uses width; .* --at dense_parameters=... width=..., or"):
        read(path).plan(Budget(1e18), law=own)


def test_the_row_of_a_dense_model_names_the_router_of_its_law(path):
    said = repr(planned(path, Budget(1e18)))
    assert "Dense (Hash)" in said and "Dense (S-Base)" in said and "by each router's law" in said
    of_dense = repr(read(path).plan(Budget(1e18), law="dense", resamples=0, published=False))
    assert "Dense" in of_dense and "Dense (" not in of_dense and "each router" not in of_dense


def test_tokens_that_a_law_does_not_know_of_are_refused(path):
    with pytest.raises(InputError, match="3e\\+09 training tokens do not match the runs' 3.277e\\+07; the law"):
        planned(path, Budget(1e18), tokens=3e9)
    without = table().drop(columns=["batch_size", "sequence_length"])
    without.to_csv(path.with_name("without.csv"), index=False)
    with pytest.raises(InputError, match="the runs' .* \\(524,288 per step, because the table has no tokens\\)"):
        planned(path.with_name("without.csv"), Budget(1e18), tokens=3e7)
    assert planned(path, Budget(1e18), tokens=3.3e7).rankings[0].lines[0].choice.tokens == 3.3e7


def test_a_table_without_what_a_budget_asks_for(tmp_path):
    file = tmp_path / "short.csv"
    table().drop(columns=["total_parameter_count", "kqv_size"]).to_csv(file, index=False)
    with pytest.raises(
        InputError, match="a limit of memory needs the column total_parameter_count, which is not known"
    ):
        planned(file, Budget(1e18, 1e9))
    with pytest.raises(InputError, match="num_blocks, num_heads and kqv_size, which are not known"):
        planned(file, Budget(1e18, cached_tokens=1e3))
    assert planned(file, Budget(1e18)).rankings[0].lines[0].total_parameters is None


def test_steps_of_a_table_without_a_batch_are_those_of_the_released_one(tmp_path):
    """A step has 524,288 tokens, and training costs 6 N FLOPs per token."""
    file = tmp_path / "short.csv"
    table().drop(columns=["batch_size", "sequence_length", "flops_per_step"]).to_csv(file, index=False)
    (ranking,) = planned(file, Budget(1e17)).rankings
    for line in ranking.lines:
        assert line.choice.tokens == pytest.approx(STEPS * 2**19, rel=1e-12)
        assert line.choice.flops == pytest.approx(6 * line.dense_parameters * line.choice.tokens, rel=1e-9)
        assert line.choice.flops <= 1e17 * (1 + 1e-9)
    said = " ".join(notes(ranking))
    assert "6 N per training token" in said and "the plan assumes 524,288" in said


def test_costs_are_those_of_the_formulas():
    frame = table()
    own = frame[frame["router_type"].isin(["S-Base", "Dense"])]
    for experts in (8, 20, 64):  # a trained E, an E between two trained ones, and a larger E: on a line in E
        costs = costs_of(own, float(experts))
        for name in tuple(SIZES)[:4]:
            size, model = (
                float(SIZES[name].dense_parameters),
                count(*SIZES[name][:4], router_type="S-Base", num_experts=experts),
            )
            assert float(costs.total(size)) == pytest.approx(model.total_parameters, rel=1e-9)
            assert float(costs.flops(size)) == pytest.approx(model.flops_per_token, rel=1e-9)
    assert float(costs.tokens(3e7)) == pytest.approx(TOKENS) and costs.same_tokens
    assert float(costs.embedding(16_527_360.0)) == pytest.approx(512 * 32_000)
    assert float(costs.cache(16_527_360.0)) == pytest.approx(2 * 6 * 8 * 32)
    one = costs_of(own[own["dense_parameter_count"] == size], 64.0)  # the costs of a single size grow with N
    assert float(one.total(2 * size)) == pytest.approx(2 * float(costs.total(size)))
    # The geometric mean of two sizes costs the geometric mean of their costs.
    ends = [float(SIZES[name].dense_parameters) for name in ("55M", "130M")]
    middle = costs.total(np.sqrt(np.prod(ends)))
    assert float(middle) == pytest.approx(float(np.sqrt(np.prod([float(costs.total(n)) for n in ends]))), rel=1e-9)


def test_a_plan_asks_a_law_at_the_columns_that_a_fit_reads():
    several = np.where(table()["router_type"] == "Dense", 1, 2)
    frame = table(tokens=TOKENS, k=several, granularity=several)
    names = (
        "dense_parameters", "num_experts", "tokens", "teraflops", "utilisation", "total_parameters",
        "active_parameters", "granularity", "sparsity",
    )  # fmt: skip
    law = LAWS["joint"]._replace(columns=names)
    for selection in select_rows(frame, axes="every"):
        columns, _ = law_columns(selection, law, "loss_validation")
        for row, wanted in zip(selection.frame.to_dict("records"), zip(*columns, strict=True), strict=True):
            kind = (row["num_experts"], row["k"], row["granularity"])
            costs = costs_of_kind(SimpleNamespace(rows=SimpleNamespace(runs=selection), law=law), *kind[1:])(kind[0])
            found = law_point(law, costs, kind, row["dense_parameter_count"], row["tokens"])
            assert [float(column[0]) for column in found.values()] == pytest.approx(wanted, rel=1e-9), (kind, names)


def test_a_counted_embedding_takes_memory_once(tmp_path):
    """The same models, whose N and P exclude or count the embedding. FLOPs of the table pay for the same size."""
    frame = table()
    embedding = 32_000 * frame["d_model"]
    counted = frame.assign(counted_embeddings=1)
    counted["dense_parameter_count"] += embedding
    counted["total_parameter_count"] += embedding
    memory, active = [], []
    for each, more in ((frame, 0), (counted, 1)):
        each.to_csv(tmp_path / "t.csv", index=False)
        [fit, *_] = read(tmp_path / "t.csv").fit("separable")
        models = models_of_runs(fit, Budget(1e18, cached_tokens=0), TOKENS)
        size = float(frame["dense_parameter_count"].max() + more * embedding.max())
        memory.append([float(model.option.held(size)) for model in models])
        law, kind = LAWS["joint"], (2.0, 1.0, 1.0)
        active.append(law_point(law, costs_of(each, 2.0), kind, size, TOKENS)["active_parameters"][0])
        assert all("embedding" in model.counts for model in models)
    assert memory[0] == pytest.approx(memory[1], rel=1e-9) and active[0] == pytest.approx(active[1], rel=1e-9)


def test_training_flops_go_before_flops_and_these_before_a_count_and_6_N_D():
    frame = pandas.DataFrame({
        "training_flops": [1e20, *[math.nan] * 3], "flops": [2e20, 3e20, *[math.nan] * 2], "step": 1000,
        "flops_per_step": [1e15] * 3 + [math.nan], "dense_parameter_count": 1e8, "tokens": 1e9,
    })  # fmt: skip
    assert training_flops(frame).tolist() == [1e20, 3e20, 3e18, 6e17]


def test_a_next_run_of_unknown_cost_is_proposed(tmp_path):
    """The table has neither tokens nor steps."""
    table().assign(step=1).drop(columns=["batch_size", "sequence_length"]).to_csv(tmp_path / "t.csv", index=False)
    found = read(tmp_path / "t.csv").next_run("b", router="Hash", law="separable")
    assert len(found.proposals) == 25 and found.too_dear == 0 and "not known" in repr(found)


def test_a_next_run_of_a_law_of_tokens_has_tokens_too(tmp_path):
    sizes, tokens = (column.ravel() for column in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
    loss = 1.7 + 400 / sizes**0.34 + 4e3 / tokens**0.4 + 1e-3 * np.sin(np.arange(9))
    columns = {"num_experts": 1, "router_type": "Dense", "step": 1000, "loss_validation": loss}
    frame = pandas.DataFrame({"hyper_id": range(9), "dense_parameter_count": sizes, "tokens": tokens} | columns)
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = read(tmp_path / "t.csv").next_run("prediction", 1e10, law="hoffmann", tokens=1e12)
    assert [(each.cell.size, each.cell.tokens) for each in found.proposals[:1]] == [(2e9, 2e11)]
    assert sum(each.trained for each in found.proposals) == 9 and len(found.proposals) == 16
    assert found.proposals[0].flops == pytest.approx(6 * 2e9 * 2e11) and "D = 1e+12" in repr(found)
    with pytest.raises(InputError, match="--next prediction needs --tokens"):
        read(tmp_path / "t.csv").next_run("prediction", 1e10, law="hoffmann")


def test_a_law_without_a_loss_at_a_new_size_proposes_only_known_sizes(path):
    sizes = sorted({SIZES[name].dense_parameters for name in tuple(SIZES)[:4]})
    found = read(path).next_run("prediction", sizes[1], 4.0, router="Hash", law="per-size")
    assert sorted({each.run.at[0] for each in found.proposals}) == sizes


def test_a_table_says_how_many_tokens_runs_had_if_it_says_so_of_all():
    frame = pandas.DataFrame({"step": [1, 2, 3], "tokens": [1e9, np.nan, 1e9]})
    assert not says_tokens(frame) and says_tokens(frame.iloc[[0, 2]]) and not says_tokens(frame[["step"]])
    assert says_tokens(frame.assign(batch_size=64, sequence_length=512))


def test_a_ranking_is_that_of_the_law_behind_the_table(path):
    size = 1e8
    flops = 3 * float(costs_of(table(), 1.0).flops(size)) * TOKENS
    (ranking,) = planned(path, Budget(flops), 40).rankings
    assert {line.model.router for line in ranking.lines} == {"Dense", *GAIN} and len(ranking.lines) == 8
    assert (ranking.lines[0].model.router, ranking.lines[0].model.num_experts) == ("S-Base", 32)
    losses = [line.choice.loss for line in ranking.lines]
    assert losses == sorted(losses)
    for line in ranking.lines:
        truth = 10 ** log_loss(line.model.router, line.dense_parameters, line.model.num_experts)
        assert line.choice.loss == pytest.approx(truth, rel=1e-3)
        assert line.law_interval.low < line.choice.loss < line.law_interval.high
        assert line.choice.flops == pytest.approx(flops, rel=1e-9) and line.choice.tokens == pytest.approx(TOKENS)
        assert not line.beyond and line.surrounded
    dense = next(line for line in ranking.lines if line.model.router == "Dense")
    assert dense.dense_parameters == pytest.approx(size, rel=1e-6) and dense.model.law == ranking.law
    assert ranking.lines[0].wins == 1.0 and sum(line.wins for line in ranking.lines) == pytest.approx(1)


@pytest.mark.slow
def test_an_option_has_the_intervals_that_predict_gives_at_its_size(tmp_path):
    frame = table(3e-3)
    frame[frame["router_type"] != "Hash"].to_csv(tmp_path / "table.csv", index=False)
    runs = read(tmp_path / "table.csv")
    [said] = runs.plan(Budget(1e17), published=False, resamples=0, level=0.5).to_dict()["rankings"]
    best = said["options"][0]
    [found] = runs.fit(level=0.5).better_form().predict(best["N"], best["num_experts"]).predictions
    for name, own in (("law", found.law), ("run", found.run)):
        ends = best["intervals"][name]
        assert [ends["low"], ends["high"]] == pytest.approx([own.low, own.high], rel=1e-9), name
    [line] = found.fit.method_words
    assert "share about" in line and f"S-Base: {line}" in said["notes"]


def test_a_resample_draws_the_dense_runs_once_for_all_routers(tmp_path):
    """The runs are drawn from the whole table, and each law is a line in logarithms."""
    frame = table(0.03, tuple(SIZES)[:3])
    gain = frame["router_type"].map(GAIN).fillna(0.0)
    frame["loss_validation"] *= frame["num_experts"] ** -gain  # experts gain nothing, so any option may win
    frame.to_csv(tmp_path / "table.csv", index=False)
    (ranking,) = planned(tmp_path / "table.csv", Budget(1e17), 60).rankings
    size, experts, loss = (np.log10(frame[name]) for name in (
        "dense_parameter_count", "num_experts", "loss_validation"
    ))  # fmt: skip
    losses = np.full((60, len(ranking.lines)), np.nan)
    for draw, uniforms in enumerate(np.random.default_rng(SEED).random((60, len(frame)))):
        drawn = (uniforms * len(frame)).astype(int)
        for i, line in enumerate(ranking.lines):
            own = drawn[frame["router_type"].isin({line.model.fit.name, "Dense"}).to_numpy()[drawn]]
            design = np.stack([np.ones(len(own)), size[own], experts[own]], 1)
            if len(own) > design.shape[1] and np.linalg.matrix_rank(design) == design.shape[1]:
                law = np.linalg.lstsq(design, loss[own], rcond=None)[0]
                point = [1.0, np.log10(line.dense_parameters), np.log10(line.model.num_experts)]
                losses[draw, i] = law @ point
    known = losses[np.isfinite(losses).all(axis=1)]
    wins = np.bincount(known.argmin(axis=1), minlength=len(ranking.lines)) / len(known)
    assert ranking.resamples == len(known) > 30 and np.count_nonzero(wins) > 2
    assert [line.wins for line in ranking.lines] == pytest.approx(wins.tolist())


def test_a_resample_without_the_least_used_models_keeps_their_share():
    """The rows follow a law in (F, B) with B_min = 0.2. A table without rows at this B gives the same shares."""
    law = utilisation.UtilisationCoefficients(-0.08, -0.04, 0.01, 0.4, 0.14, 18.0, 0.2)
    F, B = (values.ravel() for values in np.meshgrid([0.2, 1.0, 5.0], [0.2, 0.5, 2.0, 8.0, 30.0]))
    points, drawn = (np.array([1.0, 2.0]), np.array([0.2, 4.0])), np.where(B > 0.2, 1.0, 0.0)[None, :]
    loss = utilisation.predict_loss(F, B, law)
    (found,) = resampled_losses(LAWS["routed-utilisation"], (F, B), loss, drawn, points)
    assert found.round(6).tolist() == utilisation.predict_loss(*points, law).round(6).tolist()


@pytest.mark.parametrize("limit", [{"memory": 1e9}, {"inference_tokens": 1e8}])
def test_a_frontier_keeps_all_of_a_budget_but_its_flops(path, limit):
    """At the FLOPs of the budget, the lowest loss of each router equals the loss of the ranking."""
    budget = Budget(1e18, **limit)
    for ranking in planned(path, budget).rankings + published_rankings(budget):
        found = frontier(ranking, budget, 4)
        assert found.keys() == {line.model.router for line in ranking.lines}
        for router, points in found.items():
            best = next(line for line in ranking.lines if line.model.router == router)
            [(loss, out)] = [(loss, out) for flops, loss, out in points if math.isclose(flops, budget.flops)]
            assert loss == pytest.approx(best.choice.loss, rel=1e-12) and out == bool(best.beyond)


def test_the_figure_of_a_plan_has_plain_numbers(path):
    from matplotlib import pyplot, rc_context

    with rc_context({"text.parse_math": False}):
        figure = planned(path, Budget(1e17)).plot({"Dense": "#4a4a4a"})
        figure.draw_without_rendering()
    [panel] = figure.axes
    labels = [label.get_text() for label in panel.get_xticklabels()]
    assert "1e17" in labels and not any("$" in label for label in labels)
    assert panel.get_title() == "separable, own fit"
    assert {label.get_text() for label in panel.get_legend().get_texts()} == {"Dense", *GAIN}
    pyplot.close(figure)


def test_a_frontier_is_dashed_where_it_ends_beyond_the_runs():
    from matplotlib.figure import Figure

    panel = Figure().subplots()
    _draw_frontier(panel, "Hash", [(x, 1.0, x in (3, 4)) for x in range(1, 7)], None)
    assert [line.get_linestyle() for line in panel.lines[1:]] == ["-", "--", "--", "--", "-"]


def test_the_notes_on_a_ranking_are_the_approved_ones(approved):
    def line(router="Hash", law="separable", words=(), **fields):
        fields = {"beyond": [], "surrounded": True, "at_reach": False, "law_interval": (1.0, 2.0)} | fields
        fields |= {"dense_parameters": 1e9, "total_parameters": 4e9, "choice": SimpleNamespace(tokens=2e10)}
        fit = SimpleNamespace(name=router, method_words=words)
        model = SimpleNamespace(router=router, law=law, fit=fit, num_experts=4)
        return SimpleNamespace(model=model, **fields)

    def fit(rise, determined=True):
        return SimpleNamespace(
            name="Hash",
            misfit=SimpleNamespace(rise=rise),
            determined=determined,
            cautions=["a doubt"],
            unfloored=None,
            floored=None,
        )

    far, model = [SimpleNamespace(letter="N", times=2.0)], SimpleNamespace(counts=("flops", "tokens", "embedding"))
    plain = Ranking("separable", "", "", {"Hash": 4, "Dense": 2}, [line(), line()], {}, 0, 0, [], [model])
    reasons = {f"option {i}": ("wide", "deep", "far", "odd")[i % 4] for i in range(16)}
    rankings = [
        plain,
        plain._replace(
            left_out=reasons, lines=[line(beyond=far), line(at_reach=True)], fits=[fit(None), fit(1, False)]
        ),
        plain._replace(lines=[line(surrounded=False), line("Dense")], rows={"Hash": 4}, resamples=20, drawn=20),
        plain._replace(lines=[line(words=["intervals: by size"])], resamples=18, drawn=20),
        plain._replace(drawn=20, models=[SimpleNamespace(counts=())], law="hoffmann"),
        plain._replace(rows={}, attested="a table of the paper", lines=[line(beyond=far)]),
    ]
    lines = [text for i, each in enumerate(rankings) for text in (f"# {i}", *notes(each, 1))]
    approved("plan-notes.txt", "\n".join(lines) + "\n", 0)


def test_beyond_the_runs_is_flagged_and_ends(path):
    (ranking,) = planned(path, Budget(1e21), resamples=2).rankings
    largest = SIZES["130M"].dense_parameters
    words = "1.32B is the largest size tried, so the best N may be larger, with fewer tokens"
    assert words in ranking.optimum.sentences(0.95)[0]
    smaller = ranking.optimum._replace(N=ranking.optimum.N._replace(high=1e9))
    assert "largest size tried" not in smaller.sentences(0.95)[0]
    for line in ranking.lines:
        assert line.at_reach and line.dense_parameters == pytest.approx(10 * largest)
        assert [each.column for each in line.beyond] == ["dense_parameters"]
    assert [tuple(each) for each in beyond(["a", "b"], [np.array([1.0, 2.0])] * 2, [2.0, 0.5])] == [("b", 0.5, 1.0)]


def test_what_is_too_far_from_all_runs_is_left_out():
    """At 1e11 FLOPs Hoffmann's law has far too few tokens, and the joint law predicts more than a uniform guess."""
    for law, reason in (
        ("hoffmann", "is too far from the runs, whose smallest is"),
        ("joint", "worse than a uniform guess"),
    ):
        small, large = (next(r for r in published_rankings(Budget(flops)) if r.law == law) for flops in (1e11, 1e19))
        assert not small.lines and all(reason in said for said in small.left_out.values())
        assert large.lines and not large.left_out


def test_a_law_without_a_loss_between_the_sizes_of_the_runs_ranks_nothing(path):
    with pytest.raises(InputError, match="the law per-size gives no loss between the sizes .*; choose another --law"):
        read(path).plan(Budget(1e18), law="per-size", resamples=0, published=False)


def test_sizes_with_tokens_of_their_own(tmp_path):
    """In a sweep with 20 tokens per parameter, an option has the tokens of the runs of its size."""
    frame = table()
    frame["tokens"] = 20.0 * frame["dense_parameter_count"]
    frame.to_csv(tmp_path / "table.csv", index=False)
    ends = " to ".join(re.escape(f"{frame['tokens'].agg(end):.4g}") for end in ("min", "max"))
    with pytest.raises(InputError, match=f"5e\\+08 training tokens do not match the runs' {ends}, by size; the law"):
        planned(tmp_path / "table.csv", Budget(1e18), tokens=5e8)
    (ranking,) = planned(tmp_path / "table.csv", Budget(1e18)).rankings
    for line in ranking.lines:
        assert line.choice.tokens == pytest.approx(20 * line.dense_parameters, rel=1e-9)
        assert line.choice.flops == pytest.approx(1e18, rel=1e-9)
