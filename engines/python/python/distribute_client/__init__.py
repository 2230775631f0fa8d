"""A client of distribute's parameter servers, with numpy in and out.

    import distribute_client as dc

    servers = dc.connect(["10.0.0.1:7000", "10.0.0.2:7000"])
    words = servers.variable("words", (1_000_000, 32), initializer=dc.Initializer.uniform(-0.1, 0.1, seed=1),
                             rule=dc.Rule.adagrad())
    rows = words.look_up([3, 14, 15])
    words.push_rows([3, 14, 15], gradient, learning_rate=0.1)
"""

from ._native import Initializer, Rule, Servers, Variable, __version__, connect
from .errors import Error, Forked, InvalidArgument, Refused, TimedOut, TooLarge, Unreachable

__all__ = [
    "Error",
    "Forked",
    "Initializer",
    "InvalidArgument",
    "Refused",
    "Rule",
    "Servers",
    "TimedOut",
    "TooLarge",
    "Unreachable",
    "Variable",
    "__version__",
    "connect",
]
