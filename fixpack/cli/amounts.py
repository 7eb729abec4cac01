"""Amounts on a command line, as argparse's ``type``: what is none is an error of usage."""

from __future__ import annotations

import argparse
import re
from fractions import Fraction


def gib(text: str) -> int:
    """ "152.8" as bytes, rounded down.  Decimals are taken exactly: 152.8 GiB are 8,692 cells of 18 MiB, and a bit.

    :raises argparse.ArgumentTypeError: for what is no amount of memory.
    """
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of GiB, such as 152.8")
    return int(Fraction(text) * (1 << 30))


def part(text: str) -> Fraction:
    """A part of a whole, between 0 and 1, neither included.

    :raises argparse.ArgumentTypeError: for anything else.
    """
    if not re.fullmatch(r"0?\.[0-9]{1,9}", text) or not Fraction(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no part between 0 and 1, such as 0.3")
    return Fraction(text)


def count(text: str) -> int:
    """A number from 1 to ten million.

    :raises argparse.ArgumentTypeError: for anything else.
    """
    if not re.fullmatch(r"[0-9]{1,8}", text) or not 0 < int(text) <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10,000,000")
    return int(text)


def weight(text: str) -> float:
    """A number that is not below zero.

    :raises argparse.ArgumentTypeError: for anything else.
    """
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no weight, such as 0.5")
    return float(text)
