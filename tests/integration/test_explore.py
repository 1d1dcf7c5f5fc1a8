"""tools/explore.py: the numbers in its page are the model's own, and a real browser can work with it."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import onmt_varattn
from onmt_varattn.bin.analysis import explore
from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import SIZES, STEPS, call

HOSTILE = ('</script><b id=evil>fett</b> <!-- & "der" hund', "</script><img src=x> $1 {{the}} \\u003c dog")
SENTENCES, FEW = 500, 40


def trained(data, directory, flags):
    """A model with opinions of its own: trained for two steps, then shaken."""
    words = f"-config {data}.yaml {SIZES} {STEPS} {flags} -train_steps 2 -save_checkpoint_steps 2 -save_model {directory}/m"
    assert call(train.main, *words.split()) == 0
    loaded = checkpoint.load(f"{directory}/m_step_2.pt")
    noise = torch.manual_seed(4)
    for name, value in loaded["model"].items():
        value += (
            0.5 * torch.randn(value.shape, generator=noise) * (value.dim() > 1) * ("embeddings" not in name)
        )
    checkpoint.write(loaded, f"{directory}/m.pt")
    return f"{directory}/m.pt"


@pytest.fixture(scope="module")
def variational(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("variational"), "-attention variational")


@pytest.fixture(scope="module")
def report(variational, toy, tmp_path_factory):
    """The page of 500 sentences: a hostile one first, then, after a blank one, those of the training set."""
    directory = tmp_path_factory.mktemp("report")
    for side, text in zip(("de", "en"), HOSTILE, strict=True):
        lines = (toy / f"train.{side}").read_text("utf-8").splitlines()
        (directory / side).write_text("\n".join([text, "", *lines]) + "\n", "utf-8")
    words = (
        f"-model {variational} -src {directory}/de -tgt {directory}/en -output {directory}/page.html -kmax 3"
    )
    for _ in range(2):
        assert call(explore.main, *words.split(), "-sentences", SENTENCES) == 0
        again = (directory / "page.html").rename(directory / "first.html")
    assert call(explore.main, *words.split(), "-sentences", 40) == 0
    (directory / "page.html").rename(directory / "small.html")
    return again


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', Path(page).read_text("utf-8"), re.DOTALL)[1])


def own_numbers(model, sentence):
    """p, q, exact (T x S), l and the words' log-likelihoods of one pair, read alone."""
    (reading,) = model.read([model.sentences(*sentence["text"])])
    p, l = reading.prior.log_probs, reading.enumerated.log_likelihood
    joint = p + l
    exact = (joint - joint.logsumexp(1, keepdim=True)).exp()
    return {"p": p.exp(), "q": reading.posterior.probs, "e": exact, "l": l, "ll": joint.logsumexp(1)}


def entropy(probs):
    return -torch.special.xlogy(probs, probs).sum(1)


def test_the_numbers_of_the_page_are_the_models(report, variational):
    data, model = data_of(report), onmt_varattn.load(variational)
    assert len(data["sentences"]) == SENTENCES
    assert [s["line"] for s in data["sentences"]] == [1, *range(3, SENTENCES + 2)], "without the blank pair"
    assert data["kinds"] == ["p", "q", "e"]
    for sentence in data["sentences"][:8]:
        own = own_numbers(model, sentence)
        shape = (len(sentence["target"]), len(sentence["source"]))
        for kind in "pqe":
            found = torch.tensor(sentence["probs"][kind]).view(shape) / 1000
            torch.testing.assert_close(found, own[kind], rtol=0, atol=0.00051)
            torch.testing.assert_close(
                torch.tensor(sentence["entropy"][kind]), entropy(own[kind]), rtol=0, atol=0.001
            )
        torch.testing.assert_close(
            torch.tensor(sentence["l"]).view(shape) / -100, own["l"], rtol=0, atol=0.0051
        )
        torch.testing.assert_close(torch.tensor(sentence["ll"]), own["ll"], rtol=0, atol=0.001)
        kl = (torch.special.xlogy(own["q"], own["q"]) - torch.special.xlogy(own["q"], own["p"])).sum(1)
        torch.testing.assert_close(torch.tensor(sentence["kl"]), kl, rtol=0, atol=0.002)
        most = own["p"].topk(3, 1)
        assert sentence["kmax"] == most.indices.tolist()
        inside = (own["p"].log() + own["l"]).gather(1, most.indices).logsumexp(1) - most.values.sum(1).log()
        torch.testing.assert_close(torch.tensor(sentence["ll_kmax"]), inside, rtol=0, atol=0.001)
    words = [ll for sentence in data["sentences"] for ll in sentence["ll"]]
    assert dict(data["figures"])["perplexity, exact"] == pytest.approx(
        torch.tensor(words, dtype=torch.float64).mean().neg().exp().item(), rel=1e-3
    )


def test_subwords_lose_their_marks_but_not_their_place(report, variational):
    model = onmt_varattn.load(variational)
    for sentence in data_of(report)["sentences"][:20]:
        source, _ = model.sentences(*sentence["text"])
        words = "".join(
            label.removeprefix("·") if label[0] == "·" else " " + label for label in sentence["source"]
        )
        assert words.replace("▁", " ").split() == "".join(source.tokens).replace("▁", " ").split()


def test_the_same_page_twice(variational, toy, tmp_path):
    pages = []
    for name in ("a", "b"):
        words = f"-model {variational} -src {toy}/test.de -tgt {toy}/test.en -output {tmp_path}/{name}"
        assert call(explore.main, *words.split()) == 0
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("flags", "kinds", "mixed"),
    [("-attention soft", ["p", "e"], "soft"), ("-attention relaxed", ["p", "q"], "10 samples")],
)
def test_other_models_show_what_they_have(data, toy, tmp_path, flags, kinds, mixed):
    model = trained(data, tmp_path, flags)
    words = f"-model {model} -src {toy}/test.de -tgt {toy}/test.en -sentences 3 -output {tmp_path}/page.html"
    assert call(explore.main, *words.split()) == 0
    found = data_of(tmp_path / "page.html")
    assert found["kinds"] == kinds
    assert found["mixed"] == mixed
    assert ("kl" in found["sentences"][0]) == ("q" in kinds)
    assert ("l" in found["sentences"][0]) == ("e" in kinds)
    assert found["kmax"] == (5 if "e" in kinds else 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-src {toy}/test.de -tgt {toy}/valid.en -output {out}", "has 30 lines and {toy}/valid.en has 40"),
        ("-src {toy}/test.de -tgt {toy}/test.en -output {toy}/test.en", "is -tgt and would be written over"),
        ("-src {toy}/test.de -tgt {toy}/test.en -output {toy}", "it is a directory"),
        (
            "-src {toy}/test.de -tgt {toy}/test.en -output {out} -sentences 0",
            "-sentences 0 must be at least 1",
        ),
        ("-src {toy}/test.de -tgt {toy}/test.en -output {out} -kmax -1", "-kmax -1 must not be negative"),
        ("-src {toy}/none -tgt {toy}/test.en -output {out}", "{toy}/none: cannot be read"),
        ("-src {out}.blank -tgt {out}.blank -output {out}", "have no pair of sentences with words"),
    ],
)
def test_mistakes_are_told_before_the_model_is_loaded(toy, tmp_path, capsys, words, message):
    places = {"toy": toy, "out": tmp_path / "page"}
    (tmp_path / "page.blank").write_text(" \n\n")
    assert call(explore.main, "-model", "/no/such.pt", *words.format(**places).split()) == 2
    assert message.format(**places) in capsys.readouterr().err


@pytest.fixture(scope="module")
def chromium():
    """A headless browser, from Debian's packages chromium and chromium-driver."""
    reason = "needs the Python package selenium (pip install selenium)"
    webdriver = pytest.importorskip("selenium.webdriver", reason=reason)
    from selenium.webdriver.chrome.service import Service

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("needs chromium and chromedriver (Debian packages chromium and chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,800"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


@pytest.fixture
def page(chromium, report):
    """The small report, freshly opened."""
    chromium.get("about:blank")
    chromium.get(f"file://{report.parent}/small.html")
    return chromium


def find(page, selector):
    return page.find_element("css selector", selector)


def text(page, selector):
    return find(page, selector).get_attribute("textContent")


def press(page, *keys):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        ActionChains(page).send_keys(getattr(Keys, key, key)).perform()


SEEN = """
    const box = arguments[0].getBoundingClientRect();
    return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === arguments[0];
"""


def hover(page, row, column):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page).move_to_element(find(page, f"td.z[data-j='{row}'][data-i='{column}']")).perform()


def shown_numbers(page):
    """What the strip says of a cell: p, q and exact, l."""
    return [text(page, f"#v-{key}").replace("−", "-") for key in ("p", "q", "e", "l")]


def right_numbers(sentence, own, row, column):
    probs = [round(float(own[kind][row, column]), 3) for kind in "pqe"]
    return [f"{p:.3f}" if p >= 0.001 else "< 0.001" for p in probs], float(own["l"][row, column])


def check_numbers(page, sentence, own, row, column):
    *probs, l = shown_numbers(page)
    right, right_l = right_numbers(sentence, own, row, column)
    assert probs == right
    assert float(l) == pytest.approx(right_l, abs=0.0051)


def test_500_sentences_open_fast_without_errors_or_network(chromium, report, record_property):
    chromium.get("about:blank")
    chromium.get_log("browser")
    chromium.get_log("performance")
    chromium.get(f"file://{report}")
    ready = int(find(chromium, "html").get_attribute("data-ready"))  # ms since the page was asked for
    size = report.stat().st_size
    print(f"{SENTENCES} sentences: {size / 1e6:.2f} MB, interactive after {ready} ms")
    record_property("milliseconds", ready)
    assert ready < 5000
    assert size < 4e6
    assert len(chromium.find_elements("css selector", "#list li")) == SENTENCES
    assert len(chromium.find_elements("css selector", "#grids table")) == 1
    assert chromium.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [f"file://{report}"]


def test_hostile_text_is_only_text(page):
    assert text(page, "#source") == HOSTILE[0]
    assert text(page, "#target") == HOSTILE[1]
    assert text(page, "#list li .s") == HOSTILE[0]
    assert page.find_elements("css selector", "#evil, img") == []
    assert page.get_log("browser") == []


def test_sentences_by_click_and_by_keys(page):
    items = page.find_elements("css selector", "#list li")
    items[3].click()
    sentences = [item.find_element("css selector", ".s").get_attribute("textContent") for item in items]
    assert text(page, "#source") == sentences[3]
    assert items[3].get_attribute("aria-selected") == "true"
    page.execute_script("document.getElementById('list').focus()")
    for key, index in (("ARROW_DOWN", 4), ("ARROW_UP", 3), ("END", FEW - 1), ("HOME", 0), ("PAGE_DOWN", 10)):
        press(page, key)
        assert text(page, "#source") == sentences[index], key
        assert find(page, "#list").get_attribute("aria-activedescendant") == f"s{index}"
    page.refresh()
    assert text(page, "#source") == sentences[10], "the address names the sentence"


def test_hover_and_focus_show_the_models_numbers(page, report, variational):
    page.find_elements("css selector", "#list li")[2].click()
    sentence = data_of(report)["sentences"][2]
    own = own_numbers(onmt_varattn.load(variational), sentence)
    for row, column in ((0, 0), (2, 3), (len(sentence["target"]) - 1, len(sentence["source"]) - 1)):
        hover(page, row, column)
        check_numbers(page, sentence, own, row, column)
        where = text(page, "#where")
        assert where.startswith(f"{sentence['source'][column]} → {sentence['target'][row]}")
        assert text(page, "#v-hq") == f"{sentence['entropy']['q'][row]:.3f}"
        assert ("K-max" in where) == (column in sentence["kmax"][row])
    cell = find(page, "td.z[data-j='4'][data-i='1']")
    page.execute_script("arguments[0].scrollIntoView()", cell)  # the strip may be above it
    cell.click()
    for keys, at in ((["ARROW_RIGHT"], (4, 2)), (["ARROW_DOWN"], (5, 2)), (["END"], (5, len(sentence["source"]) - 1)),
                     (["HOME", "ARROW_LEFT"], (5, 0)), (["ARROW_UP"] * 5, (0, 0))):  # fmt: skip
        press(page, *keys)
        check_numbers(page, sentence, own, *at)
        focused = page.switch_to.active_element
        assert (focused.get_attribute("data-j"), focused.get_attribute("data-i")) == tuple(map(str, at))
        assert focused.get_attribute("tabindex") == "0"
        outline = (
            focused.value_of_css_property("outline-style"),
            focused.value_of_css_property("outline-width"),
        )
        assert outline == ("solid", "3px")
        (right, _) = right_numbers(sentence, own, *at)
        assert f"prior {right[0]}, posterior {right[1]}, exact posterior {right[2]}" in text(page, "#said")


def test_keys_never_lead_under_the_strip(page, report):
    rows = len(data_of(report)["sentences"][0]["target"])
    metrics = {"width": 1280, "height": 480, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.execute_script("document.querySelector('tr:last-child td.z').focus()")
        for row in reversed(range(rows)):
            focused = page.switch_to.active_element
            assert focused.get_attribute("data-j") == str(row)
            assert page.execute_script(SEEN, focused), row
            press(page, "ARROW_UP")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_search_and_sorting(page, report):
    sentences = data_of(report)["sentences"][:FEW]
    word = sentences[5]["text"][1].split()[1]
    find(page, "#search").send_keys(word.upper())
    found = [
        int(item.get_attribute("textContent")) for item in page.find_elements("css selector", "#list .n")
    ]
    right = [s["line"] for s in sentences if word in "\n".join(s["text"]).lower()]
    assert found == right
    assert 0 < len(right) < FEW
    assert text(page, "#count") == f"{len(right)} of {FEW} sentence pairs"
    find(page, "#search").send_keys("nowhere to be found")
    assert page.find_elements("css selector", "#list li") == []
    find(page, "#search").clear()
    for key, value, upwards in (
        ("kl", lambda s: sum(s["kl"]) / len(s["kl"]), False),
        ("length", lambda s: len(s["source"]), False),
        ("ll", lambda s: sum(s["ll"]) / len(s["ll"]), True),
    ):
        find(page, f"#sort option[value={key}]").click()
        lines = [
            int(item.get_attribute("textContent")) for item in page.find_elements("css selector", "#list .n")
        ]
        assert sorted(lines) == sorted(s["line"] for s in sentences)
        values = [value(next(s for s in sentences if s["line"] == line)) for line in lines]
        assert all(a <= b + 1e-9 if upwards else a >= b - 1e-9 for a, b in itertools.pairwise(values))


def test_toggles(page):
    def shade():
        return find(page, "td.z.on").value_of_css_property("background-image")

    def colours():
        return shade().count("rgb")

    assert colours() == 6, "three layers, two stops each"
    find(page, "#layers label:nth-of-type(2)").click()
    assert colours() == 4
    find(page, "label:has(input[value=side])").click()
    assert [grid.get_attribute("aria-label") for grid in page.find_elements("css selector", "table")] == [
        "Alignment: prior",
        "Alignment: exact posterior",
    ]
    assert len(page.find_elements("css selector", "td.z.on")) == 2, "the chosen cell is marked in both"
    framed = find(page, "td.z.k:not(.on)").value_of_css_property("box-shadow")
    find(page, "#kmax-box label").click()
    assert find(page, "td.z.k:not(.on)").value_of_css_property("box-shadow") != framed
    find(page, "#layers label:nth-of-type(1)").click()
    find(page, "#layers label:nth-of-type(3)").click()
    assert len(page.find_elements("css selector", "table")) == 1, "one distribution always stays"


def test_a_grid_has_headers_and_the_skip_link_leads_there(page):
    sentence = {
        side: page.execute_script(f"return data.sentences[0].{side}") for side in ("source", "target")
    }
    headers = page.find_elements("css selector", "thead th[scope=col]:not(.h)")
    assert [header.get_attribute("textContent") for header in headers] == sentence["source"]
    headers = page.find_elements("css selector", "tbody th[scope=row]")
    assert [header.get_attribute("textContent") for header in headers] == sentence["target"]
    cells = page.find_elements("css selector", "td.z")
    assert len(cells) == len(sentence["source"]) * len(sentence["target"])
    assert cells[1].get_attribute("aria-label") == f"{sentence['target'][0]} from {sentence['source'][1]}"
    assert len(page.find_elements("css selector", "td.z[tabindex='0']")) == 1
    press(page, "TAB", "ENTER")
    assert page.switch_to.active_element.tag_name == "td"


@pytest.mark.parametrize("width", [320, 420, 1280])
def test_nothing_sticks_out_of_the_window(page, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def long_page(report, path, tokens):
    """The small report with another first sentence: as many source tokens as given, then NULL."""
    html = (report.parent / "small.html").read_text("utf-8")
    data = data_of(report.parent / "small.html")
    first = data["sentences"][0]
    columns, rows = tokens + 1, len(first["target"])
    first["source"] = [f"token{i}" for i in range(tokens)] + ["NULL"]
    first["probs"] = {kind: [1000 // columns] * (columns * rows) for kind in first["probs"]}
    first["l"] = [100] * (columns * rows)
    data["null"] = True
    packed = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    changed = re.sub(
        r'(id="data">).*?(</script>)', lambda found: found[1] + packed + found[2], html, flags=re.DOTALL
    )
    path.write_text(changed, "utf-8")
    return f"file://{path}"


BOXES = """
    const box = document.querySelector(".scroll"), rect = element => element.getBoundingClientRect();
    box.scrollTo(...arguments);
    const inside = element => rect(element).left >= rect(box).left - 1 &&
        rect(element).right <= rect(box).left + box.clientWidth + 1 && rect(element).top >= rect(box).top - 1;
    return {
        overflow: box.scrollWidth - box.clientWidth, bottom: rect(box).bottom, window: innerHeight,
        columns: [...box.querySelectorAll("thead th")].map(inside),
        rows: [...box.querySelectorAll("tbody th")].map(label => rect(label).left - rect(box).left),
        cell: rect(box.querySelector("td.z")).width,
        nulls: [...box.querySelectorAll("thead .null")].map(label => label.textContent),
    };
"""


@pytest.mark.parametrize(("tokens", "fits"), [(12, True), (29, True), (30, True), (80, False)])
def test_a_long_source_can_be_read_at_1300_pixels(chromium, report, tmp_path, tokens, fits):
    """All columns fit, or scroll in a box in sight below and beside their labels; NULL is the last column."""
    metrics = {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        chromium.get("about:blank")
        chromium.get(long_page(report, tmp_path / "long.html", tokens))
        first = chromium.execute_script(BOXES, 0, 0)
        last = chromium.execute_script(BOXES, 1e6, 1e6)
        corner = chromium.find_elements("css selector", "td.z")[-1]
        chromium.execute_script("arguments[0].scrollIntoView({block: 'nearest'})", corner)
        assert chromium.execute_script(SEEN, corner)
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert (first["overflow"] <= 0) == fits == all(first["columns"])
    assert first["columns"][0]
    assert last["columns"][-1], "log p(y), after scrolling to the right end"
    assert last["columns"][tokens], "NULL"
    assert fits or first["bottom"] <= first["window"], "the horizontal scroll bar is in sight"
    assert max(last["rows"]) < 10, "row labels do not scroll away"
    assert first["cell"] >= 15
    assert first["nulls"] == ["NULL"]


def test_light_and_dark(page):
    colours = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        values = [find(page, "body").value_of_css_property(name) for name in ("background-color", "color")]
        colours.append([sum(map(int, re.findall(r"\d+", value)[:3])) for value in values])
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    (light_paper, light_ink), (dark_paper, dark_ink) = colours
    assert light_paper - light_ink > 450
    assert dark_ink - dark_paper > 450


@pytest.mark.parametrize("warnings", [[], ["the <b>prior</b>'s alignments are uniform", "so are others"]])
def test_warnings_are_seen_at_the_top(chromium, report, tmp_path, warnings):
    html = (report.parent / "small.html").read_text("utf-8")
    packed = json.dumps(warnings).replace("<", "\\u003c")
    changed, count = re.subn(r'"warnings":\[.*?\],"kinds"', lambda _: f'"warnings":{packed},"kinds"', html)
    assert count == 1
    (tmp_path / "page.html").write_text(changed, "utf-8")
    chromium.get(f"file://{tmp_path}/page.html")
    box = find(chromium, "#warnings")
    assert box.is_displayed() == bool(warnings)
    assert [item.text for item in box.find_elements("css selector", "li")] == [
        f"Warning: {warning}" for warning in warnings
    ]
    assert not warnings or box.location["y"] < find(chromium, "h1").location["y"] < 200
