"""The exceptions of this package. All are `Error`; most are one of Python's own exceptions as well."""


class Error(Exception):
    """An operation on the servers has failed. The text names the operation, the server and a remedy."""


class Refused(Error):
    """A server has refused a request, and has changed nothing, unless the text says otherwise.

    Each shard is a request of its own: those of a variable on other servers may have been applied.

    `kind` is one of NoSuchTable, Exists, Argument, NotFinite, Rule, NoMemory, Expired, Storage, Busy, Malformed,
    TooLarge, Stale, Lost, NotAllowed.
    """

    def __init__(self, text, kind="Argument"):
        super().__init__(text)
        self.kind = kind


class TimedOut(Error, TimeoutError):
    """There was no answer before the timeout. A change may have been applied, or may still be applied."""


class Unreachable(Error, ConnectionError):
    """A server cannot be reached, and a retry would not help: the text says why."""


class TooLarge(Error, ValueError):
    """A request is too large to be sent at once."""


class Forked(Error, RuntimeError):
    """The process was forked after it had connected. Nothing was sent: connect after the fork."""


class InvalidArgument(Error, ValueError):
    """An argument is invalid. Nothing was sent."""
