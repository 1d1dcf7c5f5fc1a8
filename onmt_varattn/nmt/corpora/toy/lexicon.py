"""The words of the toy corpus: German and English lexical entries and German inflection."""

from typing import NamedTuple

ICH, DU, ER, WIR, IHR = range(5)  # verb agreement; the third person plural takes the form of WIR


def entries(table: str) -> list[list[str]]:
    """Split a table into its comma-separated entries, each a list of words."""
    return [entry.split() for entry in table.split(",")]


def english_suffix(word: str, suffix: str) -> str:
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
    nouns = []
    for gender, de, plural, en, *en_plural in entries(table):
        nouns.append(Noun(gender, de, plural, en, *(en_plural or [english_suffix(en, "s")])))
    return nouns


def _verbs(table: str) -> list[Verb]:
    """Entries `[particle+]infinitive changed-stem participle english [past [participle]]`; "-": unchanged."""
    verbs = []
    for infinitive, changed, participle, en, *past in entries(table):
        particle, _, stem = infinitive.rpartition("+")
        past = past or [english_suffix(en, "ed")]
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
    for gender, de, en in entries(
        "f bank bank/bench, n schloss castle/lock, f birne pear/bulb, m strauß bouquet/ostrich,"
        "n tor gate/goal, f decke blanket/ceiling, f karte map/card, n blatt leaf/sheet"
    )
]
MODIFIERS = entries(
    "apfel apple, haus house, garten garden, stadt city, schul school, küchen kitchen, wald forest,"
    "winter winter, sommer summer, holz wood, kinder child, nacht night"
)
COMPOUNDS = [
    Noun(head.gender, de + head.de, de + head.plural, f"{en} {head.en}", f"{en} {head.en_plural}")
    for de, en in MODIFIERS
    for head in HEADS
]
ADJECTIVES = entries(
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
MODALS = entries(
    "kann kannst kann können könnt can, muss musst muss müssen müsst must, will willst will wollen wollt want"
)
SUBJECTS = [("ich", "i", ICH), ("du", "you", DU), ("er", "he", ER), ("sie", "she", ER), ("es", "it", ER)]
SUBJECTS += [("wir", "we", WIR), ("ihr", "you", IHR), ("sie", "they", WIR)]
OBJECTS = entries("mich me, dich you, ihn him, uns us")  # by person
POSSESSIVES = entries("mein my, dein your, sein his, unser our")
PREPOSITIONS = [("in", "in"), ("in", "in"), ("neben", "beside"), ("hinter", "behind"), ("vor", "in front of")]
TIMES = [("heute", "today"), ("morgen", "tomorrow"), ("jetzt", "now"), ("abends", "in the evening")]
PAST_TIMES = [("gestern", "yesterday"), ("heute", "today")]
ADVERBS = entries("nicht not, nicht not, nicht not, oft often, immer always, nie never, manchmal sometimes")
CONJUNCTIONS = entries("weil because, wenn if, obwohl although, während while")

# Articles and endings, one row per case; the columns are masculine, feminine, neuter, plural.
NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
DEFINITE = entries("der die das die, den die das die, dem der dem den")
EIN = [["", "e", "", "e"], ["en", "e", "", "e"], ["em", "er", "em", "en"]]
AFTER_DER = entries("e e e en, en e e en, en en en en")
AFTER_EIN = entries("er e es en, en e es en, en en en en")
AFTER_NOTHING = entries("er e es e, en e es e, em er em en")
