"""Tiny random models, as the tests of the model's room have them."""

from tests.serving.model.conftest import tiny

__all__ = ["tiny"]
