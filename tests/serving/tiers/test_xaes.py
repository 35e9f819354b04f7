"""The construction is the published one, and nothing that was changed decrypts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.xaes import KEY_BYTES, NONCE_BYTES, NotAuthentic, decrypt, encrypt, new_nonce

NONCE = b"ABCDEFGHIJKLMNOPQRSTUVWX"


@pytest.mark.parametrize(
    ("key", "associated", "cipher"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\x03" * 32, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_the_vectors_of_the_specification(key: bytes, associated: bytes, cipher: str) -> None:
    """The two keys are those for which the derived subkey's highest bit is 0 and 1."""
    assert encrypt(key, NONCE, b"XAES-256-GCM", associated).hex() == cipher
    assert decrypt(key, NONCE, bytes.fromhex(cipher), associated) == b"XAES-256-GCM"


@given(st.binary(max_size=64), st.binary(max_size=64), st.data())
def test_nothing_that_was_changed_decrypts(plain: bytes, associated: bytes, data: st.DataObject) -> None:
    key, nonce = bytes(range(KEY_BYTES)), bytes(range(NONCE_BYTES))
    parts = [key, nonce, encrypt(key, nonce, plain, associated), associated]
    assert decrypt(*parts) == plain
    which = data.draw(st.sampled_from([index for index, part in enumerate(parts) if part]))
    bit = data.draw(st.integers(0, 8 * len(parts[which]) - 1))
    changed = bytearray(parts[which])
    changed[bit // 8] ^= 1 << bit % 8
    parts[which] = bytes(changed)
    with pytest.raises(NotAuthentic):
        decrypt(*parts)


def test_what_is_shorter_than_a_tag_is_not_authentic() -> None:
    with pytest.raises(NotAuthentic):
        decrypt(bytes(KEY_BYTES), bytes(NONCE_BYTES), b"short", b"")


def test_nonces_do_not_repeat() -> None:
    assert len({new_nonce() for _ in range(10_000)}) == 10_000
