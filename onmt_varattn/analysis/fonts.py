"""Fonts for words of any script, out of those that are installed."""

import unicodedata
from collections.abc import Iterable

DEFAULT = "DejaVu Sans"  # comes with matplotlib
NOT_FOR_TEXT = ("Last Resort", "STIXNonUnicode", "STIXSize", "cm")
INVISIBLE = ("Cc", "Cf", "Cn", "Zs", "Zl", "Zp")  # Unicode categories that need no glyph
VARIATION_SELECTORS = {chr(code) for code in range(0xFE00, 0xFE10)}


def families(words: Iterable[str]) -> tuple[list[str], str]:
    """Font families that together have the characters of the words, and the characters that none has.

    The list is for matplotlib, which goes through it for each character.
    """
    missing = {c for word in words for c in word if unicodedata.category(c) not in INVISIBLE}
    missing -= VARIATION_SELECTORS
    installed = _installed()
    chosen = [DEFAULT]
    missing -= _characters(installed[DEFAULT])
    if not missing:
        return chosen, ""
    has = {name: _characters(path) & missing for name, path in sorted(_installed(rescan=True).items())}
    while missing:
        best = max(has, key=lambda name: (len(has[name] & missing), name.startswith("Noto Sans")))
        if not has[best] & missing:
            break
        chosen.append(best)
        missing -= has[best]
    return chosen, "".join(sorted(missing))


def advice(words: Iterable[str], missing: str) -> list[str]:
    """What a reader of the picture must know, and can do about it: a sentence each."""
    sentences = []
    if missing:
        scripts = sorted({unicodedata.name(c, "unnamed").split()[0] for c in missing})
        shown = missing[:20] + ("..." if len(missing) > 20 else "")
        sentences.append(
            f"no installed font has the characters {shown} ({', '.join(scripts)}), which are drawn as boxes; "
            "install a font for this script, such as Noto (on Debian the package fonts-noto-core, and "
            "fonts-noto-cjk for Chinese, Japanese and Korean)"
        )
    if not _shapes() and any(unicodedata.bidirectional(c) in ("R", "AL") for word in words for c in word):
        sentences.append(
            "this matplotlib draws right-to-left words from left to right and with unjoined letters; "
            "version 3.11 or newer draws them right"
        )
    return sentences


def _shapes() -> bool:
    """Whether matplotlib orders and joins letters as their script asks."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


def _installed(rescan: bool = False) -> dict[str, str]:
    """Upright regular fonts by family: the file of each.

    Args:
        rescan: look for fonts that were installed after matplotlib made its list.
    """
    from matplotlib import font_manager

    manager = font_manager.fontManager
    if rescan:
        known = {entry.fname for entry in manager.ttflist}
        for path in sorted(set(font_manager.findSystemFonts()) - known):
            try:
                manager.addfont(path)
            except (OSError, RuntimeError, ValueError):  # not a font that matplotlib can draw with
                continue
    regular = {"style": "normal", "weight": 400, "stretch": "normal"}
    return {
        entry.name: entry.fname
        for entry in manager.ttflist
        if all(getattr(entry, name) == value for name, value in regular.items())
        and not entry.name.startswith(NOT_FOR_TEXT)
    }


def _characters(path: str) -> set[str]:
    """What a font has glyphs for; nothing where they are bitmaps, which matplotlib cannot scale."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        return {chr(code) for code in font.get_charmap()} if font.scalable else set()
    except (OSError, RuntimeError, ValueError):
        return set()
