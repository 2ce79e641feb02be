"""Sign a bundle with a private key: an Ed25519 signature of bundle.json, which has the hashes of all other files.

`openssl` makes such keys, and checks such signatures, too. Nothing is asked of a network.
"""

from pathlib import Path

from enginewright.bundle.verify import MANIFEST, SIGNATURE
from enginewright.core.errors import EnginewrightError
from enginewright.core.installing import how_to_install

MAKE_ONE = "`openssl genpkey -algorithm ed25519 -out KEY.pem` makes one"


class Signer:
    """A private key. It is read before the work begins, so that a wrong one costs nothing."""

    def __init__(self, key: Path) -> None:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError:
            raise EnginewrightError(f"--sign needs the package cryptography: {how_to_install('sign')}") from None
        try:
            found = load_pem_private_key(key.read_bytes(), password=None)
        except TypeError:
            raise EnginewrightError(
                f"{key} is encrypted: give a key without a password, such as from a secret"
            ) from None
        except (ValueError, UnsupportedAlgorithm):
            raise EnginewrightError(f"{key} is no private key in PEM; {MAKE_ONE}") from None
        if not isinstance(found, Ed25519PrivateKey):
            raise EnginewrightError(f"{key} is another kind of key, and Ed25519 is needed; {MAKE_ONE}")
        self._key = found

    def sign(self, folder: Path) -> None:
        (folder / SIGNATURE).write_bytes(self._key.sign((folder / MANIFEST).read_bytes()))
