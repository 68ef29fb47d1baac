"""The packages with public names."""

MOST = {
    "ampjax": 48,
    "ampjax.cluster": 1,
    "ampjax.graphs": 26,
    "ampjax.nn": 5,
    "ampjax.optim": 18,
    "ampjax.parallel": 14,
    "ampjax.simulation": 6,
    "ampjax.sparse": 3,
    "ampjax.testing": 2,
    "ampjax.viz": 14,
}
"""How many names each may have. The reference has the names; `test_site.py` compares."""

PUBLIC = [*MOST]
