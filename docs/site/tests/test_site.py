"""The site: every page is in the navigation, links have targets, and no page loads anything from another host."""

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[1]
ROOT = SITE.parents[1]
sys.path.insert(0, str(SITE))

import links  # noqa: E402
import make  # noqa: E402
import pages  # noqa: E402

EXTRA = ("sphinx", "myst_parser", "pydata_sphinx_theme", "griffe", "math_core", "ziamath")


def entries(part: str) -> list[str]:
    return part.split(":hidden:")[1].split("```")[0].split()


def test_every_lesson_and_every_page_of_docs_is_in_the_navigation():
    hanging = make.navigation(ROOT)
    assert entries(hanging["lab/index"]) == ["routers", "law", "budget"]
    assert entries(hanging["tutorials/index"]) == sorted(path.stem for path in ROOT.glob("tutorials/[0-9]*.md"))
    docs, site = ROOT / "docs", ROOT / "docs/site"
    guides = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if site not in path.parents}
    assert {f"{name}.md" for name in entries(hanging["docs/index"])} == guides
    assert all((ROOT / f"docs/{name}.md").exists() for names in pages.GUIDES.values() for name in names)
    assert all(f"({path})" in make.guides_index(ROOT) for path in guides)


@pytest.mark.parametrize("page", sorted(pages.pages(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    names = pages.pages(ROOT)
    _, files, pictures = pages.with_links((ROOT / page).read_text(encoding="utf-8"), page, names)
    assert all((ROOT / path).exists() for path in files | pictures)


@pytest.fixture
def small(tmp_path):
    texts = {
        "README.md": "# No page\n",
        "docs/site/index.md": "# Small\n\nSee [a guide](../b.md).\n",
        "docs/laws.md": "# The laws\n",
        "docs/own_layer.md": "# Your layer\n",
        "tutorials/README.md": "# Lessons\n",
        "tutorials/02_second.md": "# Lesson 2\n",
        "docs/b.md": "# Zebras\n\nThey [run](a.md), e.g. often. And more.\n",
        "docs/a.md": "# Apes\n\n- no paragraph\n",
        "docs/site/lab/routers.md": "# To touch\n",
        "docs/more/c.md": "# Cats\n\n`Felis` purrs. And more.\n",
        "reference/routers/base.py": "x = 1\n",
        "reference/README.md": "# To be read\n",
        "picture.png": "not looked at",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_guides_have_an_order_and_new_pages_follow_by_title(small):
    hanging = make.navigation(small)
    assert entries(hanging["tutorials/index"]) == ["02_second"]
    assert entries(hanging["docs/index"]) == ["own_layer", "laws", "a", "more/c", "b"]
    assert "- [Zebras](b.md). They run, e.g. often.\n" in make.guides_index(small)
    assert "- [Cats](more/c.md). `Felis` purrs.\n" in make.guides_index(small)


@pytest.mark.parametrize(
    ("link", "where"),
    [
        ("[x](b.md)", "[x](b.md)"),
        ("[x](../README.md)", "[x](../index.md)"),
        ("[x](../reference)", "[x](../reference/index.md)"),
        ("[x](../reference/routers)", "[x](../source/reference/routers/index.md)"),
        ("[`x`](../reference/routers/base.py)", "[`x`](../source/reference/routers/base.py.md)"),
        ("![x](../picture.png)", "![x](../picture.png)"),
        (
            "[x](site/lab/routers.md?lead=base&k=2)",
            '<a class="reference internal" href="../lab/routers.html?lead=base&amp;k=2">x</a>',
        ),
        ("[x](https://arxiv.org/abs/2202.01169)", "[x](https://arxiv.org/abs/2202.01169)"),
        ("```\n[x](nowhere.md)\n```", "```\n[x](nowhere.md)\n```"),
    ],
)
def test_where_a_link_of_a_page_leads_on_the_site(small, link, where):
    text, files, pictures = pages.with_links(f"Before\n\n{link}\n", "docs/a.md", pages.pages(small), small)
    assert text == f"Before\n\n{where}\n"
    assert len(files) == ("source/" in where) and len(pictures) == link.startswith("!")


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](../../outside.md)", "![x](no.png)"])
def test_a_link_to_nothing_is_named_with_its_page(small, link):
    with pytest.raises(SystemExit, match=r"docs/a\.md: the (link to|picture) "):
        pages.with_links(link, "docs/a.md", pages.pages(small), small)


GOOD = """<html><head><link rel="stylesheet" href="look.css"><link rel="next" href="b.html"></head>
<body><h1 id="top">A</h1><a href="b.html#place">b</a> <a href="#top">up</a> <a href="folder/">folder</a>
<a href="https://arxiv.org/abs/2202.01169">paper</a><img src="data:image/png;base64,AA=="></body></html>"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "b.html").write_text('<p id="place">b</p>')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/index.html").write_text("<p>a folder</p>")
    (tmp_path / "look.css").write_text("p { background: url(data:image/png;base64,AA==) } /* url(http://a.example) */")
    return tmp_path


def test_a_site_whose_links_are_right_has_no_faults(site):
    assert links.faults(site) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('<a href="c.html">c</a>', "a.html: the link c.html leads to nothing"),
        ('<a href="b.html#other">b</a>', "leads to a place that is not on that page"),
        ('<a href="https://shop.example/x">x</a>', "not among HOSTS"),
        ('<a href="https://notarxiv.org/x">x</a>', "not among HOSTS"),
        ('<a href="javascript:go()">x</a>', "has the scheme javascript"),
        ('<script src="https://fast.example/x.js"></script>', "a.html loads https://fast.example/x.js"),
        ('<script src="//fast.example/x.js"></script>', "a.html loads //fast.example/x.js"),
        ('<link rel="preconnect" href="https://fonts.example">', "a.html loads https://fonts.example"),
        ('<img src="gone.png">', "a.html loads gone.png, which is not there"),
        ('<img srcset="https://fast.example/y.png 2x">', "a.html loads https://fast.example/y.png"),
        ('<p style="background: url(https://fast.example/y.png)">', "a.html loads https://fast.example/y.png"),
        ("<style>@import 'https://fast.example/y.css';</style>", "a.html loads https://fast.example/y.css"),
        ("<script>import('https://fast.example/y.js')</script>", "a.html loads https://fast.example/y.js"),
    ],
)
def test_a_broken_link_and_a_thing_from_elsewhere_are_found(site, bad, says):
    (site / "a.html").write_text(GOOD.replace("</body>", bad + "</body>"))
    found = links.faults(site)
    assert len(found) == 1
    assert found[0] == says if " loads " in says else says in found[0]


@pytest.mark.parametrize("style", ["@import 'https://a.example/b.css';", 'p { src: url( "http://a.example/f.ttf" ) }'])
def test_a_style_sheet_that_loads_from_elsewhere_is_found(site, style):
    (site / "look.css").write_text(style)
    assert len(links.faults(site)) == 1


def test_a_folder_that_holds_other_things_is_not_emptied(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="is not empty"):
        make.empty(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
    make.empty(tmp_path / "new")
    (tmp_path / "new/page.html").touch()
    make.empty(tmp_path / "new")
    assert not (tmp_path / "new/page.html").exists()


SEARCHES = {  # what a newcomer types, and the page that has to be the first result
    "mixture of experts": "tutorials/00_why_experts",
    "MoE": "docs/terms",
    "load balancing": "tutorials/00_why_experts",
    "collapse": "tutorials/00_why_experts",
    "capacity": "tutorials/01_a_routed_layer",
    "Sinkhorn": "tutorials/04_s_base",
    "scaling law": "tutorials/11_fitting_the_law",
}


def first_result(out: Path, query: str) -> str:
    """Return the page of the first result of a search, ranked by the site's scripts under node."""
    script = SITE / "tests/first_results.js"
    ended = subprocess.run(["node", script, out, query], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the builders say of each other's next versions
@pytest.mark.skipif(not all(map(importlib.util.find_spec, EXTRA)), reason="the extra `site` is not installed")
def test_the_site_is_built_and_sound(tmp_path):
    out = tmp_path / "site"
    assert make.build(out) == []
    if shutil.which("node"):
        for query, wanted in SEARCHES.items():
            assert first_result(out, query) == wanted, query
    with zipfile.ZipFile(next((out / "_downloads").rglob(make.NOTEBOOKS))) as archive:
        files = {"00_why_experts.ipynb", "lesson.py", "data/small_model.npz", "answers/00_why_experts.py"}
        assert {f"lessons/{file}" for file in files} <= {*archive.namelist()}
    lesson = (out / "tutorials/04_s_base.html").read_text()
    assert '<math display="block">' in lesson and "$$" not in lesson
    assert all((out / f"{name}.html").exists() for name in pages.pages(ROOT).values())
    twins = (out / "api/routers/sinkhorn.html").read_text()
    sides = [f'id="routelaws.{room}.routers.sinkhorn.sinkhorn_plan"' for room in ("reference", "accelerated")]
    assert 0 < twins.index(sides[0]) < twins.index(sides[1])
    fast = twins.split(sides[1])[1].split("<h2>")[0]
    assert "Arguments" in fast and "Differs from the reference" in fast
    line = (ROOT / "reference/routers/sinkhorn.py").read_text().split("\n").index("def sinkhorn_plan(") + 1
    assert f"source/reference/routers/sinkhorn.py.html#line-{line}" in twins
    assert "sinkhorn_plan" in (out / "searchindex.js").read_text()
    assert (out / "api/accounting.html").read_text().count("The size and cost of a model: N, P") == 1  # no twin
    assert "also holds here" in (out / "api/routed_block.html").read_text()
    interval = (out / "api/laws/confidence/uncertainty.html").read_text()  # only the reference has the folder
    homes = "reference.laws.confidence.uncertainty", "accelerated.laws.uncertainty"
    assert all(f'id="routelaws.{home}.profile_intervals"' in interval for home in homes)
    letters = (out / "api/laws/routed.html").read_text().split("where  L  loss")[1].split("</pre>")[0]
    assert "\n       N  dense" in letters and "\n       E  experts" in letters
    table = (out / "api/accelerated/tables/table.html").read_text()
    assert "noqa" not in table and '<span class="pre">\';</span> <span class="pre">routelaws</span>' in table
