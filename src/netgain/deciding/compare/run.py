"""`netgain compare`: two servers that run, or results that were measured before."""

import asyncio

from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.results import compare_results
from netgain.deciding.compare.servers import compare_servers
from netgain.deciding.compare.settings import Settings
from netgain.measuring.measurement.ask import Narrator


def compare(settings: Settings, narrator: Narrator) -> Comparison:
    """Raises UsageError for what cannot be compared and Unavailable when a server does not answer."""
    if settings.servers:
        return asyncio.run(compare_servers(settings, narrator))
    return compare_results(settings, narrator)
