"""The documentation: its code runs, its options page is complete, its links lead somewhere."""

import os
import re
import sys

import pytest

from tests.conftest import ROOT, SIZES, STEPS, run_command

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[a-z]*/*.md")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(text):
    """The anchors of a page's headings, as code hosts and myst-parser name them."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def options():
    sys.path.insert(0, str(ROOT / "docs/_ext"))
    try:
        import options

        return options
    finally:
        sys.path.remove(str(ROOT / "docs/_ext"))


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The Python blocks of extending.md as files: a module, and the check of it."""
    directory = tmp_path_factory.mktemp("extending")
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/extending.md").read_text("utf-8"), re.M | re.S
    )
    assert len(blocks) == 2
    for name, block in zip(("my_attention.py", "check.py"), blocks, strict=True):
        (directory / name).write_text(block, encoding="utf-8")
    return directory


def test_the_check_in_extending_holds(example):
    result = run_command(sys.executable, "check.py", cwd=example, env=ENVIRONMENT)
    assert result.stdout == "as the formulas say\n"


@pytest.mark.parametrize(
    "flags",
    [
        "-attention power_mean -global_attention cosine",
        "-attention variational -attention_estimator stratified -baseline step -posterior_rnn mean "
        "-world_size 2 -gpu_backend gloo",
    ],
)
def test_the_example_in_extending_trains_and_translates(example, data, toy, flags, tmp_path):
    module = example / "my_attention.py"
    words = f"train -config {data}.yaml {flags} {SIZES} {STEPS} -save_model m -log_file log"
    run_command(sys.executable, module, *words.split(), cwd=tmp_path, env=ENVIRONMENT)
    perplexities = re.findall(r"Validation perplexity: ([\d.]+)", (tmp_path / "log").read_text())
    assert float(perplexities[-1]) < float(perplexities[0])
    words = f"translate -model m_step_20.pt -src {toy}/test.de -output out -beam 2 -max_length 12"
    run_command(sys.executable, module, *words.split(), cwd=tmp_path, env=ENVIRONMENT)
    assert (tmp_path / "out").read_text("utf-8").count("\n") == 30


def test_every_option_of_every_command_is_on_the_options_page(options):
    text = options.options_text()
    assert text == options.options_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    known = set()  # what onmt_translate_dynamic shares with onmt_translate stands with the latter
    for command, parser in options.parsers().items():
        rows = set(re.findall(r"`(-[\w-]+)`", "".join(re.findall(r"^\| (`.*?) \|", sections[command], re.M))))
        names = {"-" + name.lstrip("-") for action in parser._actions for name in action.option_strings}
        names -= {"-h", "-help"}
        if command == "onmt_translate_dynamic":
            names -= known
        assert rows == names, command
        assert len(names) > 2
        known = rows


def test_the_options_page_in_the_repository_is_up_to_date(options):
    assert (ROOT / "docs/options.md").read_text("utf-8") == options.page(), "run make options"


def test_a_new_option_is_one_field(options, tmp_path, monkeypatch):
    """The field is enough for the command line, a file, the check, its condition and the documentation."""
    from dataclasses import dataclass

    import onmt.opts

    from onmt_varattn.errors import UserError
    from onmt_varattn.nmt import plugin
    from onmt_varattn.nmt.settings import TrainSettings
    from onmt_varattn.training.settings import check_attention, fill_attention
    from onmt_varattn.utils.cli import Parser
    from onmt_varattn.utils.settings import add_to, from_options, setting

    plugin.register()

    @dataclass(kw_only=True)
    class Extended(TrainSettings):
        title = "Training latent attention"
        prior_bonus: float | None = setting(
            None, help="A bonus. Default: 2.", above=0, applies=lambda it: it.has_posterior, usual=2.0
        )

    def settings(words):
        parser = Parser()
        onmt.opts.train_opts(parser)
        add_to(parser, Extended)
        found = from_options(Extended, parser.parse_args(["-data", "x", "-src_vocab", "y", *words.split()]))
        fill_attention(found)
        check_attention(found)
        return found

    assert settings("-attention variational").prior_bonus == 2
    assert settings("-attention soft").prior_bonus is None
    (tmp_path / "c.yaml").write_text("attention: variational\nprior_bonus: 3\n")
    assert settings(f"-config {tmp_path}/c.yaml").prior_bonus == 3
    with pytest.raises(UserError, match=r"-prior_bonus -1\.0 must be above 0"):
        settings("-attention variational -prior_bonus -1")
    with pytest.raises(UserError, match="-prior_bonus does not go with -attention soft; leave it out"):
        settings("-attention soft -prior_bonus 3")
    parser = Parser(description="Train.")
    add_to(parser, Extended)
    assert "| `-prior_bonus` | 2 |  | A bonus. Default: 2. |" in list(options._command("onmt_train", parser))


def test_every_table_row_on_the_options_page_has_four_cells(options):
    rows = [line for line in options.options_text().splitlines() if line.startswith("|")]
    assert len(rows) > 250
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 5, row


def test_our_groups_come_first(options):
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", options.options_text(), re.M | re.S))
    first = {name: re.findall(r"^### (.*)$", section, re.M) for name, section in sections.items()}
    assert first["onmt_train"][:5] == [
        "Latent attention",
        "Posterior",
        "Training latent attention",
        "Attention at test time",
        "Training",
    ]
    assert first["onmt_translate"][:2] == ["Attention at test time", "Translation (onmt_varattn)"]
    for name in ("onmt_train", "onmt_translate"):
        assert len(first[name]) == len(set(first[name]))


def test_a_default_that_depends_on_other_options_stands_in_its_column(options):
    rows = dict(
        re.findall(r"^\| `-(\w+)` \| (.*?) \|", options.options_text().split("## onmt_translate")[0], re.M)
    )
    assert rows["attention_samples"] == "5 for rws, iwae, vimco and rloo, else 1"
    assert rows["gumbel_temperature"] == "0.5"
    assert rows["decoder_init"] == "`zero`"
    assert rows["attention"] == ""


def test_all_that_the_library_exports_is_on_its_page():
    from onmt_varattn import latent, modules

    for package in (latent, modules):
        page = (ROOT / f"docs/api/{package.__name__.split('.')[-1]}.md").read_text("utf-8")
        shown = set(re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.M))
        registries = {name for name in package.__all__ if name.isupper()}
        assert shown == set(package.__all__) - registries
        for name in registries:
            row = re.search(rf"^\| `{name}` .*$", page, re.M)[0]
            assert set(re.findall(r"`([a-z_]+)`", row)) >= set(getattr(package, name)), name


def test_the_library_example_of_the_readme_runs(tmp_path):
    [block] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    assert len([line for line in block.splitlines() if line]) <= 15
    (tmp_path / "example.py").write_text(block, encoding="utf-8")
    result = run_command(sys.executable, "example.py", cwd=tmp_path, env=ENVIRONMENT)
    assert "'elbo': -" in result.stdout
    assert "'kl': " in result.stdout


EXAMPLE_FILES = {"my_attention.py", "check.py"}  # docs/extending.md shows how to write them


def named_modules(text):
    """The Python files and the dotted module names of a page; of an `old` -> `new` only the latter."""
    text = re.sub(r"`[\w./]+` ->", "", text)
    folders = "|".join(path.name for path in (ROOT / "onmt_varattn").iterdir() if path.is_dir())
    files = re.findall(rf"`([\w/]+\.py|(?:{folders})/[\w/]*)`", text)
    return set(files) - EXAMPLE_FILES, set(re.findall(r"\bonmt_varattn((?:\.\w+)+)", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_exists(page):
    files, dotted = named_modules(page.read_text("utf-8"))
    for name in files:
        folders = (ROOT / "onmt_varattn", ROOT / "tests", ROOT / "tools")
        assert (ROOT / name).exists() or any(any(folder.rglob(name)) for folder in folders), name
    for name in dotted:
        path, *rest = ROOT / "onmt_varattn", *name[1:].split(".")
        while rest and (path / rest[0]).is_dir():
            path /= rest.pop(0)
        if rest and not (path / f"{rest[0]}.py").exists():  # not a module: something the package exports
            assert re.search(rf"\b{rest[0]}\b", (path / "__init__.py").read_text("utf-8")), name


def test_the_module_tables_of_the_architecture_page_are_complete():
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    tables = dict(re.findall(r"^\| `(\w+)/` \| \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.M))
    assert set(tables) == {"latent", "modules", "training", "nmt", "vqa"}
    for folder, rows in tables.items():
        names = "".join(row.split("|")[1] for row in rows.splitlines())
        found = (ROOT / "onmt_varattn" / folder).iterdir()
        modules = {path.name for path in found if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert set(re.findall(r"`([\w.]+)/?`", names)) == modules - {"__init__.py"}, folder


def test_every_test_that_the_formulas_name_exists():
    defined = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^def test_(\w+)\(", path.read_text("utf-8"), re.M))
    named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", (ROOT / "docs/maths.md").read_text("utf-8")))
    assert len(named) > 20
    assert named <= defined


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page):
    links = re.findall(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]*))?\)", without_code(page.read_text("utf-8")))
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text("utf-8")), f"{path}#{anchor}"


def test_the_documentation_builds_without_warnings(tmp_path):
    for package in ("sphinx", "myst_nb", "ipykernel", "furo", "sphinx-mathjax-offline"):
        pytest.importorskip(package)
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees"]
    result = run_command(*build, ROOT / "docs", tmp_path / "html")
    assert result.stderr == ""
    page = (tmp_path / "html/options.html").read_text("utf-8")
    assert page.count("<table") == page.count("</table>") > 40
    assert "-decay_on_plateau" in page
    for name, pictures in (("objectives", 5), ("models", 3)):
        assert (tmp_path / f"html/notebooks/{name}.html").read_text("utf-8").count("<img") >= pictures
    assert "LatentAttention" in (tmp_path / "html/api/latent.html").read_text("utf-8")
    check_nothing_is_fetched(tmp_path / "html")


def check_nothing_is_fetched(site):
    """Scripts, styles, fonts and pictures of the site are its own files: it can be read offline."""
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    assert len(pages) > 10
    resource = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)")
    mathjax = 0
    for path, page in pages.items():
        for address in resource.findall(page):
            assert not re.match(r"(https?:)?//", address), f"{path}: {address}"
            mathjax += address.endswith("mathjax/tex-chtml.js")
    assert mathjax > 0
    assert (site / "_static/mathjax/tex-chtml.js").stat().st_size > 100_000
    assert list((site / "_static/mathjax").rglob("*.woff"))
