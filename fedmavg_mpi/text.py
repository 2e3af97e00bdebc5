"""Texts that come from outside: which can stand in a line of output, and how one is brought into it."""

import unicodedata

NOT_IN_A_LINE = ("Cc", "Zl", "Zp", "Cs")  # control characters, line ends, and surrogates, which stand for bytes that aren't UTF-8


def fits_a_line(text):
    """Whether a text has no control characters, no line ends and can be written in UTF-8.

    Other characters that show nothing, such as joiners and spaces that don't break, belong to words in many scripts.
    """
    return text.isprintable() or not any(unicodedata.category(c) in NOT_IN_A_LINE for c in text)


def one_line(text, longest=None):
    """A text for people: spaces where it doesn't fit a line, and cut after a word where it has more than ``longest`` characters."""
    if not fits_a_line(text):
        text = "".join(" " if unicodedata.category(c) in NOT_IN_A_LINE else c for c in text)
    if longest is None or len(text) <= longest:
        return text
    head = text[: longest - 4]
    return (head.rpartition(" ")[0] or head) + " ..."
