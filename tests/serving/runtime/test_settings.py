"""Configuration: refused by name when wrong, the same tree from file, command line and its own print-out."""

import traceback

import pytest
import yaml
from pydantic import ValidationError

from netgain.errors import UsageError
from netgain.serving.runtime.config import EngineConfig, SchedulerSettings, ServerConfig
from netgain.serving.runtime.config_file import check_config, load_config, to_yaml


def test_what_is_printed_can_be_read_back(tmp_path):
    config = load_config(ServerConfig, None, ["engine.cache.kv_tokens=4096", "engine.speculation.method=ngram"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert load_config(ServerConfig, file) == config
    assert config.engine.cache.kv_tokens == 4096


def test_later_settings_win_over_earlier_and_over_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"port": 1, "engine": {"scheduler": {"max_running": 4, "max_waiting": 9}}}))
    config = load_config(ServerConfig, file, ["port=2", "port=3", "engine.scheduler.max_running=8"], {"host": "::1"})
    assert (config.port, config.host) == (3, "::1")
    assert (config.engine.scheduler.max_running, config.engine.scheduler.max_waiting) == (8, 9)


def test_values_are_what_they_look_like():
    config = load_config(EngineConfig, None, ["cache.prefix_caching=false", "model.threads=null", "model.name=7b"])
    assert config.cache.prefix_caching is False
    assert config.model.threads is None
    assert config.model.name == "7b"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["cache.kv_token=1"], "cache: unknown setting 'kv_token'; did you mean 'kv_tokens'?"),
        (["chache.kv_tokens=1"], "unknown setting 'chache'; did you mean 'cache'?"),
        (["zzz=1"], "unknown setting 'zzz'; valid names: model, cache, scheduler, speculation"),
        (["cache.block_tokens=17"], "cache.block_tokens: Input should be 8, 16, 32, 64 or 128, not 17"),
        (["cache.kv_tokens=0"], "cache.kv_tokens: Input should be greater than or equal to 1, not 0"),
        (["model.dtype=int3"], "model.dtype: .*, not 'int3'"),
        (["speculation.lookup_min=5"], r"speculation: lookup_min \(5\) is greater than lookup_max \(4\)"),
        (["scheduler.max_batch_tokens=8"], r"scheduler: max_batch_tokens \(8\) is less than max_running \(32\)"),
        (["cache"], "'cache' is no setting; write NAME=VALUE"),
        (["=1"], "'=1' is no setting"),
        (["cache.=1"], "'cache.=1' is no setting"),
        (["cache=[1"], r"the value in 'cache=\[1' cannot be read"),
        (["model.name=2024-13-45"], r"the value in 'model.name=2024-13-45' cannot be read: month"),
        (["model.name=!!int abc"], "the value in 'model.name=!!int abc' cannot be read"),
        ([f"cache={'[' * 5000}"], "cannot be read"),
        (["model.name=a", "model.name.b=1"], "goes below 'name', which has the plain value 'a'"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(UsageError, match=message):
        load_config(EngineConfig, None, settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", "must hold a mapping"),
        ("prot: 1", "did you mean 'port'"),
        ("\0", "not valid YAML"),
        ("host: 2024-13-45", "not valid YAML: month"),
        ("host: " + "[" * 5000, "not valid YAML"),
        ("send_buffer_bytes: 1099511627776", "send_buffer_bytes"),
        ("fleet: {heartbeat_s: 5, hang_timeout_s: 2}", r"heartbeat_s \(5.0\) .* hang_timeout_s \(2.0\)"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_config(ServerConfig, file)


def test_an_empty_file_is_all_defaults(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("")
    assert load_config(ServerConfig, file) == ServerConfig()


def test_configuration_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        SchedulerSettings().max_running = 3


SECRET = "p4ss"


@pytest.mark.parametrize(
    "tree",
    [
        {"kv": {"tiers": [f"valkey://u:{SECRET}@h:1/0?bad=1"]}},
        {"kv": {"tiers": [{f"valkey://u:{SECRET}@h:1/0": 1}]}},
        {"kv": {"retention_s": f"valkey://u:x@{SECRET}@h:1/0"}},
        {"kv": [f"valkey://u:{SECRET}@h:1/0"]},
        {"kv": {"policy": f"valkey://u:{SECRET}@h:1/0"}},
    ],
)
def test_what_is_refused_is_said_without_the_passwords_in_it(tree):
    with pytest.raises(ValidationError) as refused:
        EngineConfig.model_validate(tree)
    assert SECRET not in str(refused.value)
    with pytest.raises(UsageError) as said:
        check_config(EngineConfig, tree)
    assert SECRET not in "".join(traceback.format_exception(said.value))


@pytest.mark.parametrize(
    "setting",
    [
        f"kv.tiers=[valkey://u:{SECRET}@h:1/0",
        f"kv.tiers.first=valkey://u:{SECRET}@h:1/0",
        f"valkey://u:{SECRET}@h:1/0",
    ],
)
def test_a_setting_that_cannot_be_read_is_said_without_its_passwords(setting):
    with pytest.raises(UsageError) as said:
        load_config(EngineConfig, settings=[f"kv.tiers=valkey://u:{SECRET}@h:1/0", setting])
    assert SECRET not in "".join(traceback.format_exception(said.value))
