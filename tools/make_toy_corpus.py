"""Write a toy German-English corpus with gold word alignments, drawn from a synchronous grammar.

The sentences are small, the phenomena are those that make alignment worth modelling:

- verbs at the end of German clauses (", weil er den hund sieht", "hat ... gesehen", "kann ... sehen");
- separable verbs, where the last word decides the translation ("macht ... auf", "macht ... zu", "macht");
- compounds, built freely from parts, that become two English words ("apfelbaum", "apple tree");
- articles and endings that depend on a later word ("der/den/dem", "a/an");
- free choices that show in the target only: ambiguous nouns ("schloss" is a castle or a lock), the
  order of coordinated nouns, the place of an adverb of time, "gives the king a book" or "a book to the
  king". A prior over alignments cannot know these, a posterior that has read the target can.

No source sentence occurs twice, neither within a split nor across splits. Every word has at least
one link except the German comma, which has no English counterpart.

    python tools/make_toy_corpus.py -output data/toy

writes data/toy/{train,valid,test}.{de,en,align}; alignments are in Pharaoh format, "source-target"
word positions from 0.
"""

import itertools
import os
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from onmt_varattn.errors import UserError
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress

SHORTEST, LONGEST = 4, 20  # words of a sentence, either side
MOST_SENTENCES = 1_000_000  # there are more, but the short ones run out first: the mean length drifts up
NULL_WORDS = frozenset({","})  # words without a link

# Probability of the less frequent of two translations, wherever the source leaves the choice open.
RARE_MEANING, SWAPPED, FRONTED, SHIFTED = 0.35, 0.25, 0.25, 0.25

ICH, DU, ER, WIR, IHR = range(5)  # verb agreement; the third person plural takes the form of WIR


def _entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(",")]


def _english_suffix(word: str, suffix: str) -> str:
    """A regular English form: "s" (plural, third person) or "ed" (past, participle)."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ie{suffix[-1]}"
    if word.endswith("e"):
        return word + suffix[-1]
    return word + ("es" if suffix == "s" and word.endswith(("s", "ch", "sh")) else suffix)


class Noun(NamedTuple):
    """A noun in both languages; `plural` is empty where there is none, "a/b" is an ambiguous noun."""

    gender: str
    de: str
    plural: str
    en: str
    en_plural: str


class Verb(NamedTuple):
    """A verb in both languages; `particle` is what separates from it in main clauses, or empty."""

    particle: str
    infinitive: str  # without the particle
    changed: str  # stem of the second and third person singular
    participle: str
    en: str
    past: str
    en_participle: str

    def present(self, person: int) -> str:
        """The German present tense, without the particle."""
        if person == WIR:
            return self.infinitive
        stem = self.changed if person in (DU, ER) else self.infinitive[:-2]
        if person == ICH:
            return stem + "e"
        link = "e" if stem.endswith(("t", "d")) else ""
        hissing = stem.endswith(("s", "ß", "z"))
        return stem + link + ("st" if person == DU and not hissing else "t")


def _nouns(table: str) -> list[Noun]:
    """Entries `gender singular plural english [english plural]`."""
    entries = _entries(table)
    return [Noun(*entry[:4], entry[4] if entry[4:] else _english_suffix(entry[3], "s")) for entry in entries]


def _verbs(table: str) -> list[Verb]:
    """Entries `[particle+]infinitive changed-stem participle english [past [participle]]`; "-": unchanged."""
    verbs = []
    for infinitive, changed, participle, en, *past in _entries(table):
        particle, _, stem = infinitive.rpartition("+")
        past = past or [_english_suffix(en, "ed")]
        changed = stem[:-2] if changed == "-" else changed
        verbs.append(Verb(particle, stem, changed, participle, en, past[0], past[-1]))
    return verbs


PEOPLE = _nouns(
    "m mann männer man men, f frau frauen woman women, n kind kinder child children, m hund hunde dog,"
    "f katze katzen cat, m vater väter father, f mutter mütter mother, m bruder brüder brother,"
    "f schwester schwestern sister, m freund freunde friend, m arzt ärzte doctor, m lehrer lehrer teacher,"
    "n mädchen mädchen girl, m könig könige king, n pferd pferde horse, m vogel vögel bird, f kuh kühe cow,"
    "f tante tanten aunt, m onkel onkel uncle, m künstler künstler artist, m koch köche cook,"
    "f nachbarin nachbarinnen neighbour, f ente enten duck, n schaf schafe sheep sheep"
)
HEADS = _nouns(  # things that also end compounds
    "m baum bäume tree, f tür türen door, n buch bücher book, m korb körbe basket, n bild bilder picture,"
    "f lampe lampen lamp, m stuhl stühle chair, m tisch tische table, n kleid kleider dress,"
    "f suppe suppen soup, f tasse tassen cup, m schlüssel schlüssel key"
)
THINGS = HEADS + _nouns(
    "m apfel äpfel apple, n ei eier egg, m brief briefe letter, f uhr uhren clock, n fenster fenster window,"
    "m schuh schuhe shoe, n messer messer knife knives, f blume blumen flower, m hut hüte hat,"
    "f zeitung zeitungen newspaper, n brot brote loaf loaves, m koffer koffer suitcase"
)
PLACES = _nouns(
    "n haus häuser house, m garten gärten garden, f stadt städte city, f schule schulen school,"
    "f küche küchen kitchen, m wald wälder forest, n dorf dörfer village, f kirche kirchen church,"
    "n zimmer zimmer room, f brücke brücken bridge, m bahnhof bahnhöfe station, n büro büros office"
)
AMBIGUOUS = [  # singular only: their plurals often tell the meanings apart
    Noun(gender, de, "", en, "")
    for gender, de, en in _entries(
        "f bank bank/bench, n schloss castle/lock, f birne pear/bulb, m strauß bouquet/ostrich,"
        "n tor gate/goal, f decke blanket/ceiling, f karte map/card, n blatt leaf/sheet"
    )
]
MODIFIERS = _entries(
    "apfel apple, haus house, garten garden, stadt city, schul school, küchen kitchen, wald forest,"
    "winter winter, sommer summer, holz wood, kinder child, nacht night"
)
COMPOUNDS = [
    Noun(head.gender, de + head.de, de + head.plural, f"{en} {head.en}", f"{en} {head.en_plural}")
    for de, en in MODIFIERS
    for head in HEADS
]
ADJECTIVES = _entries(
    "alt old, klein small, groß big, neu new, rot red, schwarz black, grün green, jung young,"
    "schön beautiful, schnell fast, langsam slow, freundlich friendly, klug clever, ruhig quiet,"
    "stark strong, arm poor, kalt cold, billig cheap, interessant interesting, hässlich ugly"
)
VERBS = {
    "transitive": _verbs(
        "sehen sieh gesehen see saw seen, machen - gemacht make made, rufen - gerufen summon,"
        "nehmen nimm genommen take took taken, holen - geholt fetch, stellen - gestellt place,"
        "suchen - gesucht seek sought, kaufen - gekauft buy bought, finden - gefunden find found,"
        "lieben - geliebt love, malen - gemalt paint, tragen träg getragen carry, brauchen - gebraucht need,"
        "besuchen - besucht visit, vergessen vergiss vergessen forget forgot forgotten"
    ),
    "separable": _verbs(  # each stem is also a verb of its own, with another meaning
        "an+sehen sieh gesehen watch, auf+machen - gemacht open, zu+machen - gemacht close,"
        "nach+machen - gemacht imitate, an+rufen - gerufen call, an+nehmen nimm genommen accept,"
        "mit+nehmen nimm genommen keep kept, ab+nehmen nimm genommen remove, ab+holen - geholt collect,"
        "ein+holen - geholt overtake overtook overtaken, vor+stellen - gestellt introduce,"
        "ein+stellen - gestellt hire, aus+stellen - gestellt exhibit,"
        "aus+suchen - gesucht choose chose chosen"
    ),
    "ditransitive": _verbs(
        "geben gib gegeben give gave given, zeigen - gezeigt show showed shown,"
        "schicken - geschickt send sent, bringen - gebracht bring brought"
    ),
    "intransitive": _verbs(
        "schlafen schläf geschlafen sleep slept, lachen - gelacht laugh, arbeiten - gearbeitet work,"
        "warten - gewartet wait, tanzen - getanzt dance, singen - gesungen sing sang sung"
    ),
    "reporting": _verbs("sagen - gesagt say said, glauben - geglaubt believe, hoffen - gehofft hope"),
}
FRAMES = {"transitive": 32, "separable": 28, "ditransitive": 10, "intransitive": 14, "copula": 16}
TENSES = {"present": 60, "perfect": 24, "modal": 16}
HAVE = ["habe", "hast", "hat", "haben", "habt"]
BE = [("bin", "am"), ("bist", "are"), ("ist", "is"), ("sind", "are"), ("seid", "are")]
MODALS = _entries(
    "kann kannst kann können könnt can, muss musst muss müssen müsst must, will willst will wollen wollt want"
)
SUBJECTS = [("ich", "i", ICH), ("du", "you", DU), ("er", "he", ER), ("sie", "she", ER), ("es", "it", ER)]
SUBJECTS += [("wir", "we", WIR), ("ihr", "you", IHR), ("sie", "they", WIR)]
OBJECTS = _entries("mich me, dich you, ihn him, uns us")  # by person
POSSESSIVES = _entries("mein my, dein your, sein his, unser our")
PREPOSITIONS = [("in", "in"), ("in", "in"), ("neben", "beside"), ("hinter", "behind"), ("vor", "in front of")]
TIMES = [("heute", "today"), ("morgen", "tomorrow"), ("jetzt", "now"), ("abends", "in the evening")]
PAST_TIMES = [("gestern", "yesterday"), ("heute", "today")]
ADVERBS = _entries("nicht not, nicht not, nicht not, oft often, immer always, nie never, manchmal sometimes")
CONJUNCTIONS = _entries("weil because, wenn if, obwohl although, während while")

# Articles and endings, a row a case; the columns are masculine, feminine, neuter, plural.
NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
DEFINITE = _entries("der die das die, den die das die, dem der dem den")
EIN = [["", "e", "", "e"], ["en", "e", "", "e"], ["em", "er", "em", "en"]]
AFTER_DER = _entries("e e e en, en e e en, en en en en")
AFTER_EIN = _entries("er e es en, en e es en, en en en en")
AFTER_NOTHING = _entries("er e es e, en e es e, em er em en")


class Token(NamedTuple):
    """A word and its key: a source and a target token are linked when their keys are equal."""

    word: str
    key: int


def _tokens(key: int, words: str) -> list[Token]:
    return [Token(word, key) for word in words.split()]


@dataclass
class Phrase:
    """The two sides of a piece of a derivation, and the verb form it asks for as a subject."""

    de: list[Token] = field(default_factory=list)
    en: list[Token] = field(default_factory=list)
    person: int = ER

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.de + other.de, self.en + other.en)


class VerbGroup(NamedTuple):
    """The verbs of a clause: German has one to move and some at the end, English an auxiliary or none."""

    finite: list[Token]
    final: list[Token]
    auxiliary: list[Token]
    main: list[Token]


class Derivation:
    """One random sentence.

    Args:
        seed: of all draws; it alone decides the source side.
        likely: let every choice that the source leaves open go the more frequent way.
    """

    def __init__(self, seed: int, likely: bool = False) -> None:
        self.typical = True  # no choice so far went the rarer way
        self._random = random.Random(seed)
        self._likely = likely
        self._keys = itertools.count()

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _rare(self, probability: float) -> bool:
        """Whether to take the rarer translation; drawn under either policy, so that both keep in step."""
        rare = self._chance(probability) and not self._likely
        self.typical &= not rare
        return rare

    def _weighted(self, weights: dict[str, int]) -> str:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _item(self, de: str, en: str) -> Phrase:
        """Words that translate each other as a whole: each is linked with each."""
        key = next(self._keys)
        return Phrase(_tokens(key, de), _tokens(key, en))

    def _one_of(self, entries: Sequence[Sequence[str]]) -> Phrase:
        return self._item(*self._random.choice(entries))

    def sentence(self) -> Phrase:
        """A question, a statement, a statement with a subordinate clause, or a reported statement."""
        kind = self._weighted({"question": 14, "main": 46, "adjunct": 26, "reported": 14})
        if kind == "question":
            return self.clause("question") + self._item("?", "?")
        sentence = self.clause("main", reporting=kind == "reported")
        if kind != "main":
            conjunction = self._one_of(CONJUNCTIONS) if kind == "adjunct" else self._item("dass", "that")
            sentence += self._item(",", "") + conjunction + self.clause("subordinate")
        return sentence + self._item(".", ".")

    def clause(self, kind: str, reporting: bool = False) -> Phrase:
        """A clause without its conjunction and end mark.

        Args:
            kind: main (German has its verb second), question (first) or subordinate (last).
            reporting: the verb takes another clause for its object.
        """
        frame = "reporting" if reporting else self._weighted(FRAMES)
        tense = "copula" if frame == "copula" else self._weighted(TENSES)
        subject, time, adverb, place = self.subject(), Phrase(), Phrase(), Phrase()
        if self._chance(0.3 if kind == "main" else 0.15):
            time = self._one_of(PAST_TIMES if tense == "perfect" else TIMES)
            tense = "past" if time.de[0].word == "gestern" else tense
        if self._chance(0.2):
            adverb = self._one_of(ADVERBS)
        supported = kind == "question" or (bool(adverb.de) and adverb.de[0].word == "nicht")
        verbs = self.verbs(frame, tense, subject.person, kind == "subordinate", supported)
        objects = self.objects(frame, subject.person)
        if not reporting and self._chance(0.2):
            place = self.place()

        first = time.de if kind == "main" and self._chance(0.3) else []
        middle = objects.de + ([] if first else time.de) + adverb.de + place.de + verbs.final
        if kind == "subordinate":
            de = subject.de + middle + verbs.finite
        elif kind == "question" or first:
            de = first + verbs.finite + subject.de + middle
        else:
            de = subject.de + verbs.finite + middle
        en = verbs.auxiliary + subject.en if kind == "question" else subject.en + verbs.auxiliary
        en = en + adverb.en + verbs.main + objects.en + place.en
        fronted = bool(time.en) and kind != "question" and self._rare(FRONTED)
        return Phrase(de, time.en + en if fronted else en + time.en)

    def verbs(self, frame: str, tense: str, person: int, verb_last: bool, supported: bool) -> VerbGroup:
        """The verb forms of both languages; a supporting "do" is linked like the verb it supports."""
        if frame == "copula":  # the adjective stands where a participle would
            be, adjective = self._item(*BE[person]), self._one_of(ADJECTIVES)
            return VerbGroup(be.de, adjective.de, be.en, adjective.en)
        verb = self._random.choice(VERBS[frame])
        key, finite_key = next(self._keys), next(self._keys)
        third = person == ER
        do = "does" if third else "do"
        finite, final = HAVE[person], verb.particle + verb.participle
        if tense == "perfect":
            english = _tokens(finite_key, "has" if third else "have"), _tokens(key, verb.en_participle)
        elif tense == "past":  # a perfect with "gestern": both its words are the one English verb
            finite_key, english = key, _english(key, verb.en, verb.past, "did", supported)
        elif tense == "present":
            finite, final = verb.present(person), verb.particle
            if verb_last:
                finite, final = final + finite, ""
            inflected = _english_suffix(verb.en, "s") if third else verb.en
            finite_key, english = key, _english(key, verb.en, inflected, do, supported)
        else:
            *forms, modal = self._random.choice(MODALS)
            finite, final = forms[person], verb.particle + verb.infinitive
            english = _tokens(finite_key, modal), _tokens(key, verb.en)
            if modal == "want":  # English treats it like any other verb
                inflected = "wants to" if third else "want to"
                auxiliary, main = _english(finite_key, "want to", inflected, do, supported)
                english = auxiliary, main + _tokens(key, verb.en)
        return VerbGroup(_tokens(finite_key, finite), _tokens(key, final), *english)

    def subject(self) -> Phrase:
        """A pronoun, a noun phrase or two in the nominative."""
        if self._chance(0.35):
            de, en, person = self._random.choice(SUBJECTS)
            pronoun = self._item(de, en)
            return Phrase(pronoun.de, pronoun.en, person)
        if self._chance(0.15):
            return self.coordination(PEOPLE, NOMINATIVE)
        return self.noun_phrase(self._random.choice(PEOPLE), NOMINATIVE)

    def objects(self, frame: str, person: int) -> Phrase:
        """What the verb governs: a direct object, an indirect and a direct one, or nothing."""
        if frame in ("transitive", "separable"):
            if self._chance(0.12):  # but not the subject itself
                return self._one_of([entry for i, entry in enumerate(OBJECTS) if i == ER or i != person])
            return self.direct_object()
        if frame != "ditransitive":
            return Phrase()
        indirect, direct = self.noun_phrase(self._random.choice(PEOPLE), DATIVE), self.direct_object()
        if self._rare(SHIFTED):
            to = Token("to", indirect.de[0].key)  # the first word is the one that shows the dative
            return Phrase(indirect.de + direct.de, [*direct.en, to, *indirect.en])
        return indirect + direct

    def direct_object(self) -> Phrase:
        """One noun phrase or two in the accusative."""
        if self._chance(0.08):
            return self.coordination(THINGS, ACCUSATIVE)
        table = self._random.choices([THINGS, PEOPLE, COMPOUNDS, AMBIGUOUS], [36, 27, 25, 12])[0]
        return self.noun_phrase(self._random.choice(table), ACCUSATIVE)

    def coordination(self, nouns: Sequence[Noun], case: int) -> Phrase:
        """Two noun phrases joined by "und", whose order is free in English."""
        first, second = (self.noun_phrase(noun, case) for noun in self._random.sample(nouns, 2))
        both = self._item("und", "and")
        order = (second, both, first) if self._rare(SWAPPED) else (first, both, second)
        return Phrase(first.de + both.de + second.de, [token for part in order for token in part.en], WIR)

    def place(self) -> Phrase:
        """A preposition with its noun phrase; "in dem" contracts to "im"."""
        preposition = self._one_of(PREPOSITIONS)
        where = self.noun_phrase(self._random.choice(PLACES), DATIVE)
        if preposition.de[0].word == "in" and where.de[0].word == "dem":
            return self._item("im", "in the") + Phrase(where.de[1:], where.en[1:])
        return preposition + where

    def noun_phrase(self, noun: Noun, case: int) -> Phrase:
        """Determiner, adjective and noun, agreeing in gender, number and case."""
        plural = bool(noun.plural) and self._chance(0.25)
        column = "mfnp".index("p" if plural else noun.gender)
        kind = self._random.choices(["the", "a", "possessive"], [5, 3, 2])[0]
        if kind == "the":
            phrase, endings = self._item(DEFINITE[case][column], "the"), AFTER_DER
        elif kind == "a" and plural:
            phrase, endings = Phrase(), AFTER_NOTHING
        else:
            de, en = ("ein", "a") if kind == "a" else self._random.choice(POSSESSIVES)
            phrase, endings = self._item(de + EIN[case][column], en), AFTER_EIN
        if self._chance(0.25):
            de, en = self._random.choice(ADJECTIVES)
            phrase += self._item(de + endings[case][column], en)
        if plural:
            dative = "n" if case == DATIVE and not noun.plural.endswith(("n", "s")) else ""
            phrase += self._item(noun.plural + dative, noun.en_plural)
        else:
            usual, *other = noun.en.split("/")
            phrase += self._item(noun.de, other[0] if other and self._rare(RARE_MEANING) else usual)
        return Phrase(phrase.de, phrase.en, WIR if plural else ER)


def _english(key: int, base: str, inflected: str, do: str, supported: bool) -> tuple[list[Token], ...]:
    """An English verb without auxiliary of its own: inflected, or supported by a form of "do"."""
    return (_tokens(key, do), _tokens(key, base)) if supported else ([], _tokens(key, inflected))


def _spell(tokens: list[Token]) -> tuple[str, ...]:
    """The words of a side, with "a" made "an" before a vowel (German has no word "a")."""
    words = [token.word for token in tokens]
    for position, following in enumerate(words[1:]):
        if words[position] == "a" and following[0] in "aeiou":
            words[position] = "an"
    return tuple(words)


def _links(sentence: Phrase) -> tuple[tuple[int, int], ...]:
    both = itertools.product(enumerate(sentence.de), enumerate(sentence.en))
    return tuple((i, j) for (i, source), (j, target) in both if source.key == target.key)


class Pair(NamedTuple):
    """A sentence pair; `likely` is the target had every free choice gone the more frequent way."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    likely: tuple[str, ...]


def generate(n: int, seed: int) -> list[Pair]:
    """Draw sentence pairs, no two with the same source.

    Raises:
        UserError: `n` is not positive, or more than the grammar supplies without repeats.
    """
    if not 1 <= n <= MOST_SENTENCES:
        raise UserError(f"cannot draw {n} sentences without repeats: choose from 1 to {MOST_SENTENCES}")
    seeds = random.Random(seed)
    pairs: dict[tuple[str, ...], Pair] = {}
    with progress(total=n, desc="drawing sentences", unit="pairs") as bar:
        while len(pairs) < n:
            sentence_seed = seeds.getrandbits(64)
            derivation = Derivation(sentence_seed)
            sentence = derivation.sentence()
            source, target = _spell(sentence.de), _spell(sentence.en)
            if source in pairs or not all(SHORTEST <= len(side) <= LONGEST for side in (source, target)):
                continue
            likely = target
            if not derivation.typical:
                likely = _spell(Derivation(sentence_seed, likely=True).sentence().en)
            pairs[source] = Pair(source, target, _links(sentence), likely)
            bar.update()
    return list(pairs.values())


def write(splits: dict[str, list[Pair]], directory: str) -> None:
    """Write `{split}.de`, `.en` and `.align`; no file is put in place before all are written."""
    try:
        os.makedirs(directory, exist_ok=True)
        with ExitStack() as files:
            for name, pairs in splits.items():
                de, en, align = (
                    files.enter_context(atomic_write(os.path.join(directory, f"{name}.{ending}")))
                    for ending in ("de", "en", "align")
                )
                for pair in pairs:
                    print(*pair.source, file=de)
                    print(*pair.target, file=en)
                    print(*(f"{i}-{j}" for i, j in pair.links), file=align)
    except OSError as error:
        raise UserError(f"-output {directory}: cannot be written: {error.strerror}") from None


def summary(splits: dict[str, list[Pair]]) -> str:
    """What the corpus is like, in a few lines."""
    pairs = [pair for split in splits.values() for pair in split]
    sizes = ", ".join(f"{len(split)} {name}" for name, split in splits.items())
    words = [word for pair in pairs for word in pair.source], [word for pair in pairs for word in pair.target]
    links = sum(len(pair.links) for pair in pairs)
    lines = [
        f"sentences: {sizes}",
        "words a sentence: {:.1f} de, {:.1f} en".format(*(len(side) / len(pairs) for side in words)),
        "vocabulary: {} de, {} en".format(*(len(set(side)) for side in words)),
        f"links a source word: {links / len(words[0]):.2f}",
    ]
    lines += [f"  {' '.join(pair.source)}\n  {' '.join(pair.target)}" for pair in pairs[:2]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = Parser(description="Write a toy German-English corpus with gold word alignments.")
    parser.add_argument("-output", required=True, help="directory for {train,valid,test}.{de,en,align}")
    for name, size in {"train": 20_000, "valid": 500, "test": 500}.items():
        parser.add_argument(f"-{name}", type=int, default=size, help=f"sentences of {name}")
    parser.add_argument("-seed", type=int, default=1, help="of the random draws, 0 or more")
    opt = parser.parse_args(arguments)
    # Held-out sentences are drawn first, so that they stay the same whatever the size of train.
    sizes = {"valid": opt.valid, "test": opt.test, "train": opt.train}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"-{name} {size}: expected at least 1 sentence")
    if sum(sizes.values()) > MOST_SENTENCES:
        raise UserError(
            f"-train, -valid and -test ask for {sum(sizes.values())} sentences together: "
            f"the grammar supplies {MOST_SENTENCES} without repeats"
        )
    if opt.seed < 0:
        raise UserError(f"-seed {opt.seed}: expected 0 or more")
    drawn = iter(generate(sum(sizes.values()), opt.seed))
    splits = {name: list(itertools.islice(drawn, size)) for name, size in sizes.items()}
    write(splits, opt.output)
    print(summary(splits))


if __name__ == "__main__":
    run(main)
