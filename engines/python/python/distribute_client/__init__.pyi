from os import PathLike
from typing import Any, Dict, List, Literal, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import Error as Error
from .errors import Forked as Forked
from .errors import InvalidArgument as InvalidArgument
from .errors import Refused as Refused
from .errors import TimedOut as TimedOut
from .errors import TooLarge as TooLarge
from .errors import Unreachable as Unreachable

__version__: str

How = Literal["assign", "add", "sub", "mul", "div", "min", "max"]
Partition = Literal["div", "mod"]
Path = Union[str, PathLike[str]]

def connect(
    addresses: Sequence[str],
    *,
    secret: Optional[str] = None,
    certificates: Optional[Tuple[Path, Path, Path]] = None,
    job: Optional[str] = None,
    name: str = "python",
    index: int = 0,
    timeout: float = 60.0,
    plain_text: bool = False,
) -> Servers:
    """Connects to all parameter servers of a job, in the order of their indices. None may be left out: a variable of
    which only the first parts are found is taken for a smaller one. A process that is forked connects again.

    `secret` has 64 hexadecimal digits; by default, DISTRIBUTE_SECRET. `certificates` are the paths of the CA, of this
    client's certificate and of its key. `job` is the name of the job: if it is given, servers of other jobs refuse the
    client. `name` and `index` are the task as which this client connects. `timeout` is the number of seconds that the
    requests of an operation may take, lost connections included; an operation that needs several answers one after
    another, such as `variable`, `save` or `restore`, has it for each group of requests. `plain_text` allows other machines without encryption.
    """

class Rule:
    """An update rule, which the servers apply. A variable has one rule, which cannot be changed."""

    @staticmethod
    def sgd() -> Rule: ...
    @staticmethod
    def momentum(momentum: float = 0.9, *, nesterov: bool = False) -> Rule: ...
    @staticmethod
    def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-7, *, lazy: bool = False) -> Rule: ...
    @staticmethod
    def adamw(
        beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01, *, lazy: bool = False
    ) -> Rule: ...
    @staticmethod
    def nadam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-7, *, lazy: bool = False) -> Rule: ...
    @staticmethod
    def lion(beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0, *, lazy: bool = False) -> Rule: ...
    @staticmethod
    def adagrad(initial_accumulator_value: float = 0.1, epsilon: float = 1e-7) -> Rule: ...
    @staticmethod
    def row_adagrad(initial_accumulator_value: float = 0.0, epsilon: float = 1e-8) -> Rule: ...
    @staticmethod
    def rmsprop(rho: float = 0.9, momentum: float = 0.0, epsilon: float = 1e-7) -> Rule: ...
    @staticmethod
    def ftrl(
        initial_accumulator_value: float = 0.1,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
    ) -> Rule: ...

class Initializer:
    """Initial values, which the servers compute: functions of the seed, the variable's name and the position."""

    @staticmethod
    def constant(value: float) -> Initializer: ...
    @staticmethod
    def uniform(low: float, high: float, *, seed: int = 0) -> Initializer: ...
    @staticmethod
    def normal(mean: float = 0.0, stddev: float = 1.0, *, seed: int = 0) -> Initializer: ...

class Servers:
    """Connections to all parameter servers. Threads may share it. It is a context manager that closes connections."""

    @property
    def addresses(self) -> List[str]: ...
    def variables(self) -> List[str]:
        """Returns the names of all variables."""

    def find(self, name: str, *, partition: Partition = "div") -> Variable:
        """Returns a variable that exists. `partition` is that with which it was created."""

    def variable(
        self,
        name: str,
        shape: Optional[Sequence[int]] = None,
        *,
        dtype: Optional[str] = None,
        value: Optional[ArrayLike] = None,
        initializer: Optional[Initializer] = None,
        rule: Optional[Rule] = None,
        shards: Optional[int] = None,
        partition: Partition = "div",
    ) -> Variable:
        """Creates a variable with a shape and an initializer (zeros by default), or with a value.

        If it exists with the same specification, its values stay as they are; with another one, it is an error. By
        default, rows are divided over as many servers as have 256 KiB each.
        """

    def dynamic(
        self,
        name: str,
        row_shape: Sequence[int],
        *,
        dtype: str = "float32",
        initializer: Optional[Initializer] = None,
        rule: Optional[Rule] = None,
        shards: Optional[int] = None,
        admit_after: int = 1,
        max_rows: Optional[int] = None,
        max_age: Optional[int] = None,
        evict: Literal["least_recent", "least_frequent"] = "least_recent",
    ) -> Variable:
        """Creates a table whose rows have 64-bit ids, and are created by the first push of an id.

        An id gets a row after `admit_after` pushes. A server keeps at most `max_rows` rows of it, and each for
        `max_age` steps without a push.
        """

    def save(self, folder: Path) -> None:
        """Writes values and slots of all variables to a new folder of safetensors files.

        The tensors of variable `v` are `v/values`, `v/<slot>` and, with rows by ids, `v/ids` and `v/used`. A variable
        whose partition is "mod" must have been created or found with `partition="mod"` by this object. Pushes of other
        clients during the call are in some variables and not in others. The numbers of steps that the servers have
        counted are not saved.
        """

    def restore(self, folder: Path) -> List[str]:
        """Restores all variables that exist here and in the folder, and returns their names.

        Rows by ids that the folder does not have are removed. Counted steps are not restored: give Adam and its
        relatives `step` in each push. Raises Error if rows had no place in a table with `max_rows`.
        """

    def close(self) -> None:
        """Closes the connections. The next operation opens them again."""

    def __enter__(self) -> Servers: ...
    def __exit__(self, *exception: Any) -> None: ...

class Variable:
    """A variable on the servers. Threads may share it.

    An operation that returns has been applied, exactly once. One that raises TimedOut may have been, and so may one that
    KeyboardInterrupt ends.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape; with rows by ids, that of a row."""

    @property
    def dtype(self) -> str: ...
    @property
    def is_dynamic(self) -> bool: ...
    @property
    def shards(self) -> int: ...
    def set_rule(self, rule: Rule) -> None:
        """Sets the rule, unless it has this rule already."""

    def pull(self) -> NDArray[Any]:
        """Returns the complete value."""

    def assign(self, value: ArrayLike, *, how: How = "assign") -> None:
        """Combines the complete value with another one."""

    def push(
        self, gradient: ArrayLike, learning_rate: float, *, step: Optional[int] = None, finite: bool = False
    ) -> None:
        """Applies the gradient of the complete variable by its rule.

        `step` counts from 1 and matters to Adam and its relatives; by default, the servers count. With `finite`, a
        gradient with NaN or infinity is refused before anything is sent.
        """

    def look_up(self, rows: ArrayLike) -> NDArray[Any]:
        """Returns rows: the shape of `rows`, followed by that of a row. Ids without a row have their initial values."""

    def scatter(self, rows: ArrayLike, values: ArrayLike, *, how: How = "assign") -> None:
        """Combines rows with values. Of a row that occurs twice, both values are applied, in their order."""

    def push_rows(
        self,
        rows: ArrayLike,
        gradient: ArrayLike,
        learning_rate: float,
        *,
        step: Optional[int] = None,
        finite: bool = False,
    ) -> Dict[str, int]:
        """Applies the gradient of rows by the variable's rule. Gradients of one row are added up first.

        Returns the number of rows that were updated, created, waiting for admission, without space, and evicted, which
        are only counted for rows by ids.
        """

    def state(self) -> Dict[str, NDArray[Any]]:
        """Returns "values" and each slot by its name, and the "ids" of rows with their last use, "used"."""
