"""What a server tells of its settings: all of them, in effect, and no password."""

from netgain.secrecy import HIDDEN
from netgain.serving.api.settings_told import settings_told
from netgain.serving.runtime.config import ServerConfig


def test_every_setting_is_told_and_the_password_of_a_tier_is_not():
    tiers = ["redis://:p%40ss%2Fw@127.0.0.1:6379/0", "dram:1GiB"]
    config = ServerConfig.model_validate(
        {
            "engine": {"kv": {"tiers": tiers}, "scheduler": {"max_running": 7}},
            "tracing": {"endpoint": "http://u:pw@otel:4318"},
        }
    )
    told = settings_told(config)
    assert set(told) == set(ServerConfig.model_fields)
    assert told["engine"]["scheduler"]["max_running"] == 7
    assert told["engine"]["kv"]["tiers"] == [f"redis://{HIDDEN}@127.0.0.1:6379/0", "dram:1GiB"]
    assert "pw" not in told["tracing"]["endpoint"]
