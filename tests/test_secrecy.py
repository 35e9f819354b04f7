"""Values of keys, tokens and passwords are hidden wherever a command line, a setting or an output is shown or kept."""

import pytest

from netgain.secrecy import is_secret, without_secrets, words_without_secrets

VALUE = "s3cr3t-VALUE_9"


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={VALUE} vllm serve m",
        f"OPENAI_API_KEY={VALUE}",
        f"vllm serve m --api-key {VALUE} --max-num-seqs 4",
        f"vllm serve m --api-key={VALUE}",
        f"curl -H 'Authorization: Bearer {VALUE}' http://h",
        f"authorization: Basic {VALUE}",
        f"non-default args: {{'api_key': ['{VALUE}'], 'seed': 0}}",
        f"ERROR password: {VALUE}",
        f"https://user:{VALUE}@host/x",
        f"https://user:p@{VALUE}@host/x",
        f"the key was sk-{VALUE}",
        f"NAME_TOKEN={VALUE} run",
        f"VAULT_TOKEN='{VALUE}' run",
        f"AWS_SECRET_ACCESS_KEY={VALUE}",
        f"AWS_ACCESS_KEY_ID={VALUE}",
        f"OPENAI_KEY={VALUE}",
        f"DB_PASS={VALUE}",
        f"helm upgrade m chart --set apiToken={VALUE} --wait",
        f"login --token {VALUE}",
        f"login --token={VALUE}",
        f"curl -u me:{VALUE} http://h",
        f"curl --user 'me:{VALUE}' http://h",
        f"curl -H 'Authorization: Token {VALUE}' http://h",
        f"curl -H 'Authorization: Digest username=me, response={VALUE}' http://h",
        f"Proxy-Authorization: Negotiate {VALUE}",
        f'{{"authorization": "ApiKey {VALUE}"}}',
        f"private_key: {VALUE}",
    ],
)
def test_a_value_is_hidden_and_the_rest_stays(text: str) -> None:
    hidden = without_secrets(text)
    assert VALUE not in hidden
    assert "***" in hidden
    assert without_secrets(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --max-num-batched-tokens 2048 --tokenizer path --kv-cache-dtype fp8",
        "netgain serve default --api-keys keys.toml --set engine.speculation.k=4",
        "{'eos_token': '</s>', 'max_total_num_tokens': 5}",
        "the password is wrong",
        "docker run -u 1000:1000 --user 0:0 image",
        "ms per token: 5, tokens=7, MAX_TOKENS=5, BLOCK_SIZE=16, PYTHONPATH=src",
        "netgain cache stats --keys 4; routing_key=7",
        "http://127.0.0.1:8000/v1",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text
    assert words_without_secrets(text.split()) == tuple(text.split())


def test_the_word_behind_an_option_is_hidden() -> None:
    words = ("vllm", "serve", "m", "--api-key", VALUE, "--hf-token=" + VALUE, "--api-key", "--enforce-eager")
    assert words_without_secrets(words) == (
        *("vllm", "serve", "m", "--api-key", "***", "--hf-token=***"),
        *("--api-key", "--enforce-eager"),
    )
    assert words_without_secrets(("--api-key", "-x1", "-u", f"me:{VALUE}", "--token", VALUE)) == (
        *("--api-key", "***", "-u", "me:***", "--token", "***"),
    )


def test_names_that_hold_secrets() -> None:
    assert all(
        map(
            is_secret,
            ("api_key", "admin_api_key", "hf_token", "ssl_keyfile_password", "client_secret", "VAULT_TOKEN", "token"),
        )
    )
    assert not any(map(is_secret, ("max_tokens", "eos_token", "kv_tokens", "tokenizer", "api_keys", "key")))
