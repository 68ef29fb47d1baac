"""The models that read their embeddings from a table in host memory by a switch: they start as the dense ones and train the table."""

import functools

import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.data import list_reduction, sst, wikiner
from ampjax.errors import SettingsError
from ampjax.models.rnn import list_reduction_rnn
from ampjax.models.tagger import Sizes, tagger
from ampjax.models.tree_lstm import Cells, tree_lstm
from ampjax.sparse import Table

pytestmark = pytest.mark.slow
