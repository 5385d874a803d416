"""The checks of arguments. A message says the name, what was wanted, what came, and what to do."""

from .arrays import *  # noqa: F403
from .measures import *  # noqa: F403
from .numbers import *  # noqa: F403
from .options import *  # noqa: F403
from .times import *  # noqa: F403
