"""A random target with a fixed vocabulary and prompts that it can answer."""

from tests.serving.model.conftest import tiny

__all__ = ["tiny"]
