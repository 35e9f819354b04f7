"""XAES-256-GCM (C2SP.org/XAES-256-GCM): AES-256-GCM under a key derived from half of a 192-bit nonce. Random nonces of that
length do not repeat, however many processes and machines write under one key; those of plain GCM may from 2^32 messages on."""

import secrets

from netgain.errors import Unavailable
from netgain.wording import install_command

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as error:
    raise Unavailable(f"sealing KV needs cryptography: {install_command('vault')}") from error

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 24, 16


class NotAuthentic(Exception):
    """Ciphertext, associated data, nonce and key do not belong together."""


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def encrypt(key: bytes, nonce: bytes, plain: bytes | memoryview, associated: bytes) -> bytes:
    """The ciphertext, and after it 16 bytes of tag."""
    return AESGCM(_derived(key, nonce)).encrypt(nonce[12:], plain, associated)


def decrypt(key: bytes, nonce: bytes, cipher: bytes | memoryview, associated: bytes) -> bytes:
    """What was encrypted. Raises NotAuthentic."""
    try:
        return AESGCM(_derived(key, nonce)).decrypt(nonce[12:], cipher, associated)
    except (InvalidTag, ValueError) as error:  # ValueError: shorter than a tag
        raise NotAuthentic("the tag is another") from error


def _derived(key: bytes, nonce: bytes) -> bytes:
    """CMAC of the counters 1 and 2, the label X and the nonce's first half (NIST SP 800-108)."""
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes and a nonce {NONCE_BYTES}, not {len(key)} and {len(nonce)}")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # on single blocks, as CMAC does
    first = int.from_bytes(block.update(bytes(16)), "big")
    subkey = (first << 1) & ((1 << 128) - 1) ^ (0b10000111 if first >> 127 else 0)
    halves = (b"\0" + bytes([counter]) + b"X\0" + nonce[:12] for counter in (1, 2))
    return b"".join(block.update((int.from_bytes(half, "big") ^ subkey).to_bytes(16, "big")) for half in halves)
