"""Phrases that messages of several rooms share."""


def count(number: int, noun: str) -> str:
    """`number` things in words, such as "1 request" or "1200 requests"; the plural of `noun` ends in s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def brief(value: float, digits: int = 3) -> str:
    """A number rounded to so many digits; of one that has more before its point, all of these."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def install_command(extra: str) -> str:
    """How to install what an optional part of netgain needs; netgain is installed from its checkout, not from an index."""
    return f"pip install '.[{extra}]' in netgain's checkout"
