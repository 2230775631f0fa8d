"""The exceptions of this package. All are `Error`; most are one of Python's own exceptions as well."""


class Error(Exception):
    """An operation on the servers has failed. The text names the operation, the server and a remedy."""


class Refused(Error):
    """A server has refused a request. Nothing has changed, unless the text says otherwise.

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


class InvalidArgument(Error, ValueError):
    """An argument is invalid. Nothing was sent."""
