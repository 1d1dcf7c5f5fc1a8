"""A synchronous grammar: one random derivation gives a German sentence, its translation and their links."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onmt_varattn.nmt.corpora.toy.lexicon import (
    ACCUSATIVE,
    ADJECTIVES,
    ADVERBS,
    AFTER_DER,
    AFTER_EIN,
    AFTER_NOTHING,
    AMBIGUOUS,
    BE,
    COMPOUNDS,
    CONJUNCTIONS,
    DATIVE,
    DEFINITE,
    EIN,
    ER,
    FRAMES,
    HAVE,
    MODALS,
    NOMINATIVE,
    OBJECTS,
    PAST_TIMES,
    PEOPLE,
    PLACES,
    POSSESSIVES,
    PREPOSITIONS,
    SUBJECTS,
    TENSES,
    THINGS,
    TIMES,
    VERBS,
    WIR,
    Noun,
    english_suffix,
)

# Probability of the less frequent of two translations, wherever the source leaves the choice open.
RARE_MEANING, SWAPPED, FRONTED, SHIFTED = 0.35, 0.25, 0.25, 0.25


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
            inflected = english_suffix(verb.en, "s") if third else verb.en
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


def _english(
    key: int, base: str, inflected: str, do: str, supported: bool
) -> tuple[list[Token], list[Token]]:
    """An English verb without auxiliary of its own: inflected, or supported by a form of "do"."""
    return (_tokens(key, do), _tokens(key, base)) if supported else ([], _tokens(key, inflected))


def spell(tokens: list[Token]) -> tuple[str, ...]:
    """The words of a side, with "a" made "an" before a vowel (German has no word "a")."""
    words = [token.word for token in tokens]
    for position, following in enumerate(words[1:]):
        if words[position] == "a" and following[0] in "aeiou":
            words[position] = "an"
    return tuple(words)


def links(sentence: Phrase) -> tuple[tuple[int, int], ...]:
    """All linked positions (source, target), in order."""
    both = itertools.product(enumerate(sentence.de), enumerate(sentence.en))
    return tuple((i, j) for (i, source), (j, target) in both if source.key == target.key)
