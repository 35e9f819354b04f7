"""What a technique promises of the answers. The three classes are never blurred: each is held to a test of its own."""

from typing import Literal

Kind = Literal["token-identical", "law-preserving", "lossy"]
"""Token-identical: the baseline's tokens, one for one. Law-preserving: other tokens, of the same distribution. Lossy: anything
else, to be judged by measured quality."""
