"""The toy corpus: deterministic, split cleanly, and its gold alignments are what the grammar says."""

import itertools
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import sacrebleu

from onmt_varattn.bin.corpora import make_toy_corpus
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.toy import corpus as toy
from onmt_varattn.nmt.corpora.toy import lexicon
from onmt_varattn.utils.cli import run

TOOL = Path(__file__).parents[2] / "tools" / "make_toy_corpus.py"
main = make_toy_corpus.main
FILES = [f"{split}.{ending}" for split in ("train", "valid", "test") for ending in ("de", "en", "align")]
CONJUNCTIONS = {"weil", "wenn", "obwohl", "während", "dass"}


@pytest.fixture(scope="module")
def pairs():
    return toy.generate(4000, seed=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The nine files of a small corpus, as lists of split lines."""
    directory = tmp_path_factory.mktemp("toy")
    main(["-output", str(directory), "-train", "300", "-valid", "40", "-test", "50"])
    assert sorted(os.listdir(directory)) == sorted(FILES)
    return {
        name: [line.split() for line in (directory / name).read_text(encoding="utf-8").splitlines()]
        for name in FILES
    }


def linked(pair, i):
    """The target words linked with source word `i`, in order."""
    return [pair.target[j] for source, j in pair.links if source == i]


def nouns():
    return lexicon.PEOPLE + lexicon.THINGS + lexicon.PLACES + lexicon.COMPOUNDS + lexicon.AMBIGUOUS


def numbers_and_genders():
    """Surface form of every German noun -> the genders ("p" for plural) it can have."""
    forms = defaultdict(set)
    for noun in nouns():
        forms[noun.de].add(noun.gender)
        if noun.plural:
            forms[noun.plural].add("p")
            forms[noun.plural + "n"].add("p")
    return forms


def test_the_seed_decides_everything():
    first = toy.generate(50, seed=3)
    assert toy.generate(50, seed=3) == first
    assert toy.generate(80, seed=3)[:50] == first
    assert not {pair.source for pair in first} >= {pair.source for pair in toy.generate(50, seed=4)}


def test_two_runs_write_the_same_bytes(tmp_path):
    for name in ("1", "2"):  # also the hash seed: no order may come from a set
        command = [sys.executable, str(TOOL), "-output", str(tmp_path / name)]
        command += ["-train", "60", "-valid", "5", "-test", "5", "-seed", "9"]
        package = os.pathsep.join([str(TOOL.parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONHASHSEED": name, "PYTHONPATH": package}
        subprocess.run(command, check=True, env=environment, capture_output=True)
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert (tmp_path / "1" / "train.de").stat().st_size > 60 * 8


def test_sizes_are_as_asked(corpus):
    for split, size in {"train": 300, "valid": 40, "test": 50}.items():
        assert [len(corpus[f"{split}.{ending}"]) for ending in ("de", "en", "align")] == [size] * 3


def test_no_source_sentence_occurs_twice(corpus):
    sources = [tuple(line) for split in ("train", "valid", "test") for line in corpus[f"{split}.de"]]
    assert len(set(sources)) == 390


def test_held_out_sentences_do_not_depend_on_the_size_of_train(corpus, tmp_path):
    main(["-output", str(tmp_path), "-train", "7", "-valid", "40", "-test", "50"])
    for name in ("valid.de", "test.en", "test.align"):
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        assert [line.split() for line in lines] == corpus[name]


def test_files_hold_the_generated_pairs(corpus):
    pairs = toy.generate(390, seed=1)
    for split, drawn in {"valid": pairs[:40], "test": pairs[40:90], "train": pairs[90:]}.items():
        assert corpus[f"{split}.de"] == [list(pair.source) for pair in drawn]
        assert corpus[f"{split}.en"] == [list(pair.target) for pair in drawn]
        assert corpus[f"{split}.align"] == [[f"{i}-{j}" for i, j in pair.links] for pair in drawn]


def test_links_are_in_range_sorted_and_leave_out_null_words_only(pairs):
    for pair in pairs:
        assert list(pair.links) == sorted(set(pair.links))
        sources, targets = ({link[side] for link in pair.links} for side in (0, 1))
        unlinked = [word for i, word in enumerate(pair.source) if i not in sources]
        assert set(unlinked) <= toy.NULL_WORDS
        assert targets == set(range(len(pair.target)))
        assert sources | {i for i, word in enumerate(pair.source) if word == ","} == set(
            range(len(pair.source))
        )


def test_lengths(pairs):
    for pair in pairs:
        for side in (pair.source, pair.target):
            assert 4 <= len(side) <= 20
            assert side[-1] in (".", "?")
            assert " ".join(side) == " ".join(side).lower()
    assert 9 <= sum(len(pair.source) for pair in pairs) / len(pairs) <= 11


def test_german_verb_forms():
    verbs = {verb.particle + verb.infinitive: verb for table in lexicon.VERBS.values() for verb in table}
    expected = {
        "machen": ["mache", "machst", "macht", "machen", "macht"],
        "sehen": ["sehe", "siehst", "sieht", "sehen", "seht"],
        "finden": ["finde", "findest", "findet", "finden", "findet"],
        "vergessen": ["vergesse", "vergisst", "vergisst", "vergessen", "vergesst"],
        "tanzen": ["tanze", "tanzt", "tanzt", "tanzen", "tanzt"],
        "annehmen": ["nehme", "nimmst", "nimmt", "nehmen", "nehmt"],
    }
    for infinitive, forms in expected.items():
        assert [verbs[infinitive].present(person) for person in range(5)] == forms


def test_english_regular_forms():
    verbs = {verb.en: verb for table in lexicon.VERBS.values() for verb in table}
    assert (verbs["carry"].past, verbs["love"].past, verbs["open"].en_participle) == (
        "carried",
        "loved",
        "opened",
    )
    plurals = {noun.en: noun.en_plural for noun in nouns()}
    assert [plurals[noun] for noun in ("city", "church", "dress", "key", "house", "man")] == [
        "cities",
        "churches",
        "dresses",
        "keys",
        "houses",
        "men",
    ]


@pytest.mark.parametrize(
    ("verb", "particle", "english"),
    [
        ("macht", "auf", "opens"),
        ("macht", "zu", "closes"),
        ("ruft", "an", "calls"),
        ("nimmt", "an", "accepts"),
    ],
)
def test_separable_verb_and_particle_link_to_the_one_english_verb(pairs, verb, particle, english):
    found = 0
    for pair in pairs:
        if pair.source[-2:] != (particle, ".") or verb not in pair.source:
            continue
        if {"ihr", ","} & set(pair.source):  # "ihr macht" takes the same form; two clauses, two verbs
            continue
        both = linked(pair, pair.source.index(verb)), linked(pair, len(pair.source) - 2)
        if "nicht" in pair.source:
            assert both[0] == both[1] == ["does", english[:-1]]
        else:
            assert both == ([english], [english])
            found += 1
    assert found > 0


def test_the_particle_decides_the_translation(pairs):
    meanings = defaultdict(set)
    for pair in pairs:
        for i, word in enumerate(pair.source):
            if word == "macht":
                meanings[frozenset({"auf", "zu", "nach"} & set(pair.source))] |= set(linked(pair, i))
    assert "makes" in meanings[frozenset()]
    assert not meanings[frozenset()] & {"opens", "closes", "imitates"}
    assert "opens" in meanings[frozenset({"auf"})]
    assert "closes" in meanings[frozenset({"zu"})]


def test_the_particle_stays_with_a_verb_that_stands_last(pairs):
    joined = set()
    for pair in pairs:
        clause = pair.source[pair.source.index(",") + 1 :] if "," in pair.source else ()
        assert not {"auf", "zu", "an", "ab", "mit", "aus"} & set(clause)
        joined |= {"aufmacht", "anruft", "abholt"} & set(clause)
    assert joined


def test_compounds_link_to_every_one_of_their_english_words(pairs):
    compounds = defaultdict(set)
    for noun in lexicon.COMPOUNDS:  # "schlüssel" is its own plural
        compounds[noun.de].add(noun.en)
        compounds[noun.plural].add(noun.en_plural)
    assert compounds["apfelbaum"] == {"apple tree"}
    assert len(lexicon.COMPOUNDS) == 144
    seen = set()
    for pair in pairs:
        for i, word in enumerate(pair.source):
            if word in compounds:
                assert " ".join(linked(pair, i)) in compounds[word]
                seen.add(word)
    assert len(seen) > 100


def test_subordinate_clauses_end_in_a_verb_that_english_has_after_the_subject(pairs):
    """Clauses "weil er den hund sieht" must be "because he sees the dog", with just those links."""
    pronouns = {"er": "he", "es": "it"}
    articles = {"den", "das", "die", "der", "ein", "einen", "eine"}
    found = 0
    for pair in pairs:
        if "," not in pair.source:
            continue
        start = pair.source.index(",") + 1
        clause = pair.source[start:]
        if len(clause) != 6 or clause[1] not in pronouns or clause[2] not in articles:
            continue
        assert clause[0] in CONJUNCTIONS
        if any(len(linked(pair, start + i)) != 1 for i in range(6)) or clause[4] in ("nicht", "oft"):
            continue  # a compound, or a verb of two English words
        position = {i: j for i, j in pair.links if i >= start}
        first = position[start]
        assert [position[start + i] - first for i in range(6)] == [0, 1, 3, 4, 2, 5]
        assert pair.target[first + 1] == pronouns[clause[1]]
        found += 1
    assert found > 5


def test_participles_and_infinitives_stand_last(pairs):
    participles = {v.particle + v.participle: v for table in lexicon.VERBS.values() for v in table}
    found = 0
    for pair in pairs:
        if "," in pair.source or pair.source[-2] not in participles or "gestern" in pair.source:
            continue
        verb = participles[pair.source[-2]]
        if {"hat", "haben", "habe", "hast", "habt"} & set(pair.source):
            assert linked(pair, len(pair.source) - 2) == [verb.en_participle]
            found += 1
    assert found > 50


def test_with_gestern_both_words_of_the_perfect_are_the_one_english_past(pairs):
    found = 0
    for pair in pairs:
        if pair.source[:2] != ("gestern", "hat") or "," in pair.source or "nicht" in pair.source:
            continue
        assert linked(pair, 1) == linked(pair, len(pair.source) - 2)
        assert len(linked(pair, 1)) == 1
        found += 1
    assert found > 0


def test_ambiguous_nouns_have_both_translations_the_first_more_often():
    counts = defaultdict(lambda: defaultdict(int))
    meanings = {noun.de: noun.en.split("/") for noun in lexicon.AMBIGUOUS}
    for pair in toy.generate(10000, seed=2):
        for i, word in enumerate(pair.source):
            if word in meanings:
                counts[word][linked(pair, i)[0]] += 1
    assert set(counts) == set(meanings)
    for word, (usual, other) in meanings.items():
        assert set(counts[word]) == {usual, other}
        total = counts[word][usual] + counts[word][other]
        # 0.35 give or take four standard errors.
        assert abs(counts[word][other] / total - 0.35) < 4 * (0.35 * 0.65 / total) ** 0.5


def test_likely_takes_the_frequent_option_of_every_free_choice(pairs):
    rare = {noun.en.split("/")[1] for noun in lexicon.AMBIGUOUS}
    times = {"today", "tomorrow", "now", "yesterday"}
    for pair in pairs:
        assert not rare & set(pair.likely)
        assert pair.likely[0] not in times
    assert any(pair.target[0] in times for pair in pairs)
    assert 0.1 < sum(pair.likely != pair.target for pair in pairs) / len(pairs) < 0.25


def test_coordinated_nouns_are_swapped_in_some_targets_and_never_in_likely(pairs):
    swapped, count = 0, 0
    english = {noun.de: noun.en for noun in lexicon.PEOPLE if noun.de != noun.plural}
    for pair in pairs:
        if pair.source[0] not in ("der", "die", "das") or pair.source[2] != "und":
            continue
        first = english.get(pair.source[1])
        if first is None:
            continue
        (und,) = (j for i, j in pair.links if i == 2)
        swapped += first not in pair.target[:und]
        count += 1
        assert first in pair.likely[: pair.likely.index("and")]
    assert count > 20
    assert 0.05 < swapped / count < 0.5


def test_definite_articles_agree_with_gender(pairs):
    allowed = {"der": "mf", "die": "fp", "das": "n", "den": "mp", "dem": "mn", "im": "mn"}
    forms, seen = numbers_and_genders(), set()
    for pair in pairs:
        for article, noun in itertools.pairwise(pair.source):
            if article in allowed and noun in forms:
                assert forms[noun] & set(allowed[article]), (article, noun)
                seen.add((article, *sorted(forms[noun])))
    assert {("der", "m"), ("der", "f"), ("die", "f"), ("die", "p"), ("das", "n"), ("den", "m")} <= seen


def test_articles_at_the_start_are_nominative(pairs):
    nominative = {"der": {"m"}, "die": {"f", "p"}, "das": {"n"}, "ein": {"m", "n"}, "eine": {"f"}}
    forms, seen = numbers_and_genders(), set()
    for pair in pairs:
        article, noun = pair.source[:2]
        assert article not in ("den", "dem", "einen", "einem", "einer")
        if article in nominative and noun in forms:
            assert forms[noun] & nominative[article], (article, noun)
            seen.add(article)
    assert seen == set(nominative)


def test_adjective_endings_after_ein(pairs):
    adjectives = {adjective for adjective, _ in lexicon.ADJECTIVES}
    forms, seen = numbers_and_genders(), set()
    for pair in pairs:
        for article, adjective, noun in zip(pair.source, pair.source[1:], pair.source[2:], strict=False):
            for ending, gender in (("er", "m"), ("es", "n")):
                if article == "ein" and adjective.removesuffix(ending) in adjectives and noun in forms:
                    assert adjective.endswith(ending)
                    assert gender in forms[noun], (adjective, noun)
                    seen.add(ending)
    assert seen == {"er", "es"}


def test_subjects_agree_with_their_verbs_in_both_languages(pairs):
    agreement = {("ich", "i"): ("bin", "am"), ("du", "you"): ("bist", "are"), ("wir", "we"): ("sind", "are")}
    agreement |= {("er", "he"): ("ist", "is"), ("ihr", "you"): ("seid", "are")}
    seen = set()
    for pair in pairs:
        for (de, en), (verb, be) in agreement.items():
            if pair.source[0] == de and pair.source[1] in {form for form, _ in lexicon.BE}:
                assert pair.source[1] == verb
                assert linked(pair, 0) == [en]
                assert linked(pair, 1) == [be]
                seen.add(de)
    assert seen == {"ich", "du", "wir", "er", "ihr"}


def test_sie_is_she_or_they_as_the_verb_says(pairs):
    seen = set()
    for pair in pairs:
        if pair.source[0] == "sie" and pair.source[1] in ("hat", "haben", "ist", "sind"):
            expected = "she" if pair.source[1] in ("hat", "ist") else "they"
            assert linked(pair, 0) == [expected]
            seen.add(expected)
    assert seen == {"she", "they"}


def test_a_and_an(pairs):
    seen = set()
    for pair in pairs:
        for side in (pair.target, pair.likely):
            for article, word in itertools.pairwise(side):
                if article in ("a", "an"):
                    assert article == ("an" if word[0] in "aeiou" else "a"), (article, word)
                    seen.add(article)
    assert seen == {"a", "an"}


def test_questions_have_the_verb_first_with_do_linked_to_it(pairs):
    found = 0
    for pair in pairs:
        assert (pair.source[-1] == "?") == (pair.target[-1] == "?")
        if pair.target[0] in ("do", "does", "did"):
            assert pair.source[-1] == "?"
            assert linked(pair, 0)[0] == pair.target[0]
            found += 1
    assert found > 50


def test_the_choices_the_source_leaves_open_cost_a_perfect_model_little():
    held_out = toy.generate(500, seed=1)
    hypotheses = [" ".join(pair.likely) for pair in held_out]
    references = [" ".join(pair.target) for pair in held_out]
    assert 90 < sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score < 97


@pytest.mark.parametrize("size", [0, -1, toy.MOST_SENTENCES + 1])
def test_generate_refuses_sizes_out_of_range(size):
    with pytest.raises(UserError, match=str(size)):
        toy.generate(size, seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-train", "0"], "-train 0"),
        (["-valid", "-3"], "-valid -3"),
        (["-test", "0"], "-test 0"),
        (["-train", "1000000000"], "1000001000 sentences"),
        (["-seed", "-1"], "-seed -1"),
        (["-train", "many"], "-train"),
        (["-trian", "5"], "-train"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, options, message):
    output = tmp_path / "toy"
    with pytest.raises(SystemExit) as stopped:
        run(lambda: main(["-output", str(output), *options]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_an_output_that_cannot_be_a_directory_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        run(lambda: main(["-output", str(tmp_path / "file"), "-train", "5", "-valid", "1", "-test", "1"]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert error.count("\n") == 1
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_failure_half_way_leaves_no_file(tmp_path):
    pairs = toy.generate(3, seed=1)
    broken = [pairs[0], pairs[1]._replace(links=None)]
    with pytest.raises(TypeError):
        toy.write({"train": pairs, "valid": broken}, str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_summary_counts(capsys, tmp_path):
    main(["-output", str(tmp_path), "-train", "30", "-valid", "4", "-test", "6"])
    printed = capsys.readouterr().out
    drawn = toy.generate(40, seed=1)
    words = [word for pair in drawn for word in pair.target]
    assert "4 valid, 6 test, 30 train" in printed
    assert f"{len(words) / 40:.1f} en" in printed
    assert f"{len(set(words))} en" in printed
    assert " ".join(drawn[0].source) in printed
