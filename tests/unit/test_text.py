"""Text processing: what goes in comes out, through every combination of steps and through storage."""

import base64
import dataclasses
import json
import pickle
import re

import pytest
import sentencepiece
from onmt.constants import DefaultTokens
from sacremoses import MosesDetokenizer, MosesTokenizer

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.text.processing import (
    FORMAT_VERSION,
    Sentence,
    TextProcessing,
    TextSide,
    learn_subwords,
    learn_suitable_subwords,
    moses_knows,
)

GERMAN = [
    "Der alte Mann läuft über die Straße, weil er müde ist.",
    "„Grüß Gott“, sagte Frau Dr. Müller-Lüdenscheidt um 17:30 Uhr.",
    "Wie geht's dir? Das kostet 3,50 € (oder mehr)!",
    "Öl & Wasser: 50% <b>fett</b> [siehe z.B. S. 12] …",
]
ENGLISH = [
    "The old man's walking across the street, isn't he?",
    '"Good day," said Mrs. O\'Neill at 5:30 p.m., "it\'s late."',
    "Don't pay $3.50 (or more) for the boys' books!",
    "Oil & water: 50% <b>bold</b> [see p. 12] ...",
]
NASTY = [
    "▁ a▁b \\▁ \\u2581 \\\\u2581 ▁▁ u2581",
    "@@ a@@ b@@c @@@ x@ \\u0040 @\\u0040 u0040 @@",
    "<s> </s> <unk> <blank> a<s>b \\<s> \\\\<unk> <s>@@ ▁<s>",
    "</w> a</w> </w>b #version: 0.2",
    "日本語 ▅ \u200b \ufeff é é ﬁ ① ￨",
]
MANY_SPACES = "  tab\tnbsp\u00a0thin\u2009ideographic\u3000ls\u2028nel\u0085fs\x1cvt\x0bcr\r end \n"
SUBWORDS = ("sentencepiece", "bpe", "none")


def collapse(text):
    return " ".join(text.split())


def learned(side, lines, vocab_size=150):
    prepared = [side.prepare(line) for line in lines]
    return dataclasses.replace(side, model=learn_subwords(side.subword, prepared, vocab_size))


def largest_model(subword, prepared):
    try:
        return learn_subwords(subword, prepared, 10000)
    except UserError as error:
        return learn_subwords(subword, prepared, int(re.search(r"at most (\d+)", str(error))[1]))


@pytest.fixture(scope="module", params=[(t, s) for t in ("none", "moses") for s in SUBWORDS], ids="-".join)
def side(request):
    tokenize, subword = request.param
    return learned(TextSide(tokenize=tokenize, language="de", subword=subword), (GERMAN + ENGLISH) * 3)


@pytest.mark.parametrize("subword", SUBWORDS)
@pytest.mark.parametrize("known", [True, False], ids=["learned from it", "never seen"])
def test_without_tokenizer_text_comes_back(subword, known):
    texts = GERMAN + ENGLISH + NASTY + [MANY_SPACES, "", " \t "]
    training = texts * 3 if known else ["abc abd @@ ▁ <s> a<s>b"] * 3
    side = learned(TextSide(subword=subword), training, 200 if known else 30)
    for text in texts:
        assert side.decode(side.encode(text)) == collapse(text)


@pytest.mark.parametrize(("language", "texts"), [("de", GERMAN), ("en", ENGLISH)])
@pytest.mark.parametrize("subword", SUBWORDS)
def test_with_moses_text_comes_back_as_moses_can(language, texts, subword):
    side = learned(TextSide(tokenize="moses", language=language, subword=subword), texts * 3, 130)
    for text in texts:
        tokens = MosesTokenizer(language).tokenize(text, escape=False)
        assert side.decode(side.encode(text)) == MosesDetokenizer(language).detokenize(tokens, unescape=False)
    plain = texts[0]  # no quotation marks to guess about
    assert side.decode(side.encode(plain)) == plain


def test_moses_splits_by_the_rules_of_the_language():
    german = TextSide(tokenize="moses", language="de")
    english = TextSide(tokenize="moses", language="en")
    assert english.encode("the man's coat") == "the man 's coat"
    assert german.encode("the man's coat") == "the man ' s coat"
    assert moses_knows("de")
    assert not moses_knows("txt")


def test_tokens_hold_no_whitespace_but_the_space(side):
    for text in [*GERMAN, *ENGLISH, *NASTY, MANY_SPACES]:
        tokens = side.encode(text)
        assert tokens.split() == tokens.split(" ")
        assert "\n".join(tokens.split(" ")).splitlines() == tokens.split(" ")  # as a vocabulary file


def test_blank_stays_blank(side):
    assert side.encode(" \u00a0\t") == ""
    assert side.decode("") == ""


@pytest.mark.parametrize("subword", SUBWORDS)
def test_text_is_never_a_special_token(subword):
    special = [DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS]
    words = [f"{before}{token}" for token in special for before in ("", "qp", "xyz")]
    # Merges put special tokens together in bpe; in sentencepiece a run of unknown characters does.
    training = "qp xyz" if subword == "sentencepiece" else " ".join(words)
    side = TextSide(subword=subword, model=largest_model(subword, [training] * 5))
    tokens = side.encode(" ".join(words)).split()
    assert not set(special) & set(tokens)
    assert {"\\" + token for token in special} <= set(tokens)
    assert side.decode(" ".join(tokens)) == " ".join(words)


def test_lower_case():
    side = learned(TextSide(lowercase=True, subword="bpe"), GERMAN * 3, 120)
    assert side.decode(side.encode("ÜBER Die Straße")) == "über die straße"


def test_pieces_are_marked_as_the_tools_mark_them():
    bpe = learned(TextSide(subword="bpe"), ["low lower lowest"] * 3, 15)
    assert re.fullmatch(r"(\S+@@ )+\S+", bpe.encode("slowest"))
    sentencepiece = learned(TextSide(subword="sentencepiece"), ["low lower lowest"] * 3, 15)
    assert sentencepiece.encode("low lower").startswith("▁low ▁low")


@pytest.mark.parametrize(("subword", "tokens"), [("bpe", "low@@ er lo@@"), ("sentencepiece", "▁low er ▁lo")])
def test_decode_takes_a_translation_that_breaks_off(subword, tokens):
    assert TextSide(subword=subword).decode(tokens) == "lower lo"


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_vocabulary_limits_are_named_and_hold(subword):
    lines = (GERMAN + ENGLISH) * 2
    with pytest.raises(UserError, match=r"-vocab_size 14000 is more than the source text allows") as error:
        learn_subwords(subword, lines, 14000, "source text")
    most = int(re.search(r"use -vocab_size (\d+)", str(error.value))[1])
    assert learn_subwords(subword, lines, most)
    with pytest.raises(UserError, match=f"at most {most}"):
        learn_subwords(subword, lines, most + 1)
    with pytest.raises(
        UserError, match=r"-vocab_size 5 is less than the characters of the training text"
    ) as error:
        learn_subwords(subword, lines, 5)
    least = int(re.search(r"use -vocab_size (\d+)", str(error.value))[1])
    assert learn_subwords(subword, lines, least)
    with pytest.raises(UserError, match=f"at least {least}"):
        learn_subwords(subword, lines, least - 1)


def test_size_counts_characters_and_merges():
    side = learned(TextSide(subword="bpe"), (GERMAN + ENGLISH) * 3, 160)
    words = {word for line in GERMAN + ENGLISH for word in line.split()}
    characters = {c + "@@" for word in words for c in word[:-1]} | {word[-1] for word in words}
    assert len(characters) + len(side.model.splitlines()) - 1 == 160


@pytest.mark.parametrize("lines", [["a b c"], ["ab cd"]])
def test_text_without_repeated_pairs_has_no_subwords(lines):
    with pytest.raises(UserError, match="use -subword none"):
        learn_subwords("bpe", lines, 100)


def syllables(words, kinds):
    """Lines of made-up words of four letters, `words` in all and `kinds` of them different."""
    parts = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]  # 75
    known = [parts[i % 75] + parts[i // 75 % 75] for i in range(kinds)]
    chosen = [known[i % kinds] for i in range(words)]
    return [" ".join(chosen[i : i + 10]) for i in range(0, words, 10)]


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_a_size_that_nobody_gave_follows_the_text(subword, monkeypatch):
    """One subword per 50 words, at most VOCAB_SIZE: 20,000 words have 400; and it is what -vocab_size gives."""
    from onmt_varattn.nmt.text import processing as text

    lines = syllables(20_000, 2_000)
    found = learn_suitable_subwords(subword, lines)
    assert found[1:] == (400, "one per 50 words of training text")
    assert found.model == learn_subwords(subword, lines, 400)
    monkeypatch.setattr(text, "VOCAB_SIZE", 300)
    assert learn_suitable_subwords(subword, lines)[1:] == (300, "the most that are chosen")


@pytest.mark.parametrize(("subword", "characters"), [("sentencepiece", 20 + 2), ("bpe", 20 + 5 + 1)])
def test_a_small_text_has_its_characters_and_some_more(subword, characters):
    """20 letters, and the space and the unknown one; or 20 within words, 5 at their end and one merge."""
    found = learn_suitable_subwords(subword, syllables(2_000, 1_000))
    assert found[1:] == (characters + 100, "its characters and 100 more")


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
@pytest.mark.parametrize(
    "lines",
    [["a f a r", "f a"], ["a"], ["ab cd"], ["ab ab", "c"], ["日本語"], ["x" * 300], GERMAN + NASTY],
    ids=["letters", "a letter", "no pair twice", "a pair", "no spaces", "one word", "nasty"],
)
def test_any_text_has_subwords(subword, lines):
    side = TextSide(subword=subword)
    found = learn_suitable_subwords(subword, [side.prepare(line) for line in lines])
    side = dataclasses.replace(side, model=found.model)
    side.check()
    for line in lines:
        assert side.decode(side.encode(line)) == line
    if subword == "bpe" and lines[0] == "ab cd":  # characters a@@ b c@@ d
        assert (found.size, side.encode("ab")) == (4, "a@@ b")
    if lines[0] == "a f a r":
        assert len(side.encode("a f a r").split()) == 4


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_all_that_a_text_has_is_the_most_that_may_be_asked_for(subword):
    lines = ["der alte Mann", "the old man"] * 2
    found = learn_suitable_subwords(subword, lines)
    assert found.reason == "all that the training text has"
    assert learn_subwords(subword, lines, found.size)
    with pytest.raises(UserError, match=f"at most {found.size}"):
        learn_subwords(subword, lines, found.size + 1)


def test_learning_is_quiet_and_repeatable(capfd):
    for subword in ("sentencepiece", "bpe"):
        first, second = (learn_subwords(subword, GERMAN * 3, 120) for _ in range(2))
        assert first == second
    assert capfd.readouterr() == ("", "")


def test_a_very_long_line_is_learned_from_too():
    long = "zyx " * 3000
    assert "▁zyx" in learned(TextSide(subword="sentencepiece"), ["abc abd", long], 12).encode("zyx").split()


def test_storage_keeps_everything(side, tmp_path):
    text = TextProcessing(side, dataclasses.replace(side, language="en", lowercase=True))
    path = str(tmp_path / "text.json")
    text.save(path)
    copies = [
        TextProcessing.load(path),
        TextProcessing.from_dict(text.to_dict()),
        pickle.loads(pickle.dumps(text)),
    ]
    for copy in copies:
        assert copy == text
        assert copy.src.encode(GERMAN[1]) == side.encode(GERMAN[1])


def test_stored_form_is_plain(side):
    values = TextProcessing(side, side).to_dict()
    assert json.loads(json.dumps(values)) == values

    def types(value):
        return {dict}.union(*map(types, value.values())) if type(value) is dict else {type(value)}

    assert types(values) == {dict, int, str, bool}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"tokens and more tokens", "not a JSON file"),
        (b"\xff\xfe", "not a JSON file"),
        (b"[1, 2]", "not a text processing description"),
        (b'{"src": {}, "tgt": {}}', "not a text processing description"),
        (
            b'{"version": 99, "src": {}, "tgt": {}}',
            f"version 99, but this release reads version {FORMAT_VERSION}",
        ),
        (b'{"version": 1, "src": {}}', "damaged"),
        (b'{"version": 1, "src": {}, "tgt": {"colour": "red"}}', "damaged"),
        (b'{"version": 1, "src": {}, "tgt": {"subword": "wordpiece"}}', "damaged"),
        (b'{"version": 1, "src": {}, "tgt": {"lowercase": "no"}}', "damaged"),
    ],
)
def test_a_file_that_is_no_text_processing_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "text.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        TextProcessing.load(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_sentence_knows_the_words_its_tokens_are_parts_of():
    lines = ["der alte hund schläft", "ein hund und ein alter mann", "schlafende hunde"] * 5
    side = TextSide(subword="sentencepiece", model=learn_subwords("sentencepiece", lines, 30))
    sentence = side.sentence("der  schlafende mann")
    assert len(sentence.tokens) > 3
    assert sentence.labels == ["der", "schlafende", "mann"]
    assert len(sentence.words) == len(sentence.tokens)
    assert set(sentence.words) == {0, 1, 2}
    assert side.sentence("  ") == Sentence([], [], [])


@pytest.mark.parametrize(
    ("subword", "model", "said"),
    [
        ("bpe", "#version: 0.2\na b\na b c\n", "its merges cannot be read: invalid line 3 in BPE codes file: a b c"),
        ("bpe", "#version: two\na b\n", "its merges cannot be read"),
        ("bpe", "#version: 0.2\n", "its merges cannot be read"),
        ("bpe", "", "its subword model is empty"),
        ("sentencepiece", "bm8gbW9kZWw=", "its sentencepiece model cannot be read"),
        ("sentencepiece", "no base64!", "its sentencepiece model cannot be read"),
        ("sentencepiece", "", "its subword model is empty"),
    ],
)  # fmt: skip
def test_a_damaged_subword_model_is_told_with_its_file(tmp_path, capfd, subword, model, said):
    """subword-nmt would end the program, at the first sentence."""
    values = TextProcessing(TextSide(), TextSide(subword=subword, model=model)).to_dict()
    path = tmp_path / "text.json"
    path.write_text(json.dumps(values))
    for read in (lambda: TextProcessing.load(str(path)), lambda: TextProcessing.from_dict(values, str(path))):
        with pytest.raises(UserError, match=re.escape(said)) as error:
            read()
        assert str(error.value).startswith(f"{path}: ")
        assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


def test_a_run_of_backslashes_takes_time_in_proportion():
    """With a word of 400,000 of them, looking at each run from each of its characters took minutes."""
    many = "\\" * 400_000
    for subword, character in (("sentencepiece", "▁"), ("bpe", "@@")):
        side = TextSide(subword=subword, model="unused")
        assert side.prepare(many) == many
        assert side.decode(many) == many
        escaped = side.prepare(f"a{many}{character} b")
        assert len(escaped) > 800_000 or subword == "bpe"


def test_a_sentencepiece_model_that_replaces_characters_is_refused():
    import io

    model = io.BytesIO()
    settings = {"vocab_size": 20, "model_type": "bpe", "minloglevel": 2, "bos_id": -1, "eos_id": -1}
    lines = ["low lower lowest"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, normalization_rule_name="nmt_nfkc", **settings
    )
    side = TextSide(subword="sentencepiece", model=base64.b64encode(model.getvalue()).decode("ascii"))
    with pytest.raises(ValueError, match="replaces characters, which is not supported"):
        side.check()
    learned(TextSide(subword="sentencepiece"), lines, 15).check()


def test_words_that_were_split_are_not_kept_for_ever(monkeypatch):
    from onmt_varattn.nmt.text import processing as text

    side = learned(TextSide(subword="bpe"), ["low lower lowest"] * 3, 12)
    monkeypatch.setattr(text, "MOST_CACHED", 10)
    for number in range(50):
        side.encode(f"low{number}")
    assert len(text._bpe(side.model).cache) <= 11
    assert side.decode(side.encode("lower")) == "lower"
