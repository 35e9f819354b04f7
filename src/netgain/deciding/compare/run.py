"""`netgain compare`: two servers, running or started here, or results that were measured before."""

from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.results import compare_results
from netgain.deciding.compare.servers import compare_servers
from netgain.deciding.compare.settings import Settings
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.client.narrator import Narrator


def compare(settings: Settings, narrator: Narrator) -> Comparison:
    """Raises UsageError for what cannot be compared and Unavailable when a server does not start or answer."""
    if settings.servers:
        return run_interruptible(compare_servers(settings, narrator))
    return compare_results(settings, narrator)
