"""The errors that a user can mend. The command line prints one as one line and exits with status 2."""


class FedmavgError(Exception):
    """Base: the message says what was found, what was expected and what to do."""


class ConfigError(FedmavgError):
    """The configuration asks for something unknown, of the wrong type or out of range."""


class DataError(FedmavgError):
    """The input data, a store or an output file can't be used."""


class LaunchError(FedmavgError):
    """The processes were not started as one MPI program."""
