"""A process that is killed at any point loses nothing and repeats nothing: fifty kills, see ``crashes.py``."""

import pytest

from tests.crashes import story


@pytest.mark.parametrize("seed", range(5))
def test_killed_ten_times(seed):
    assert story(10, seed) <= 10
