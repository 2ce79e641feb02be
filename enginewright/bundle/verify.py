"""Check that this bundle is as it was made: python verify.py [--key PUBLIC.pem]   It needs only Python.

Each file is compared with its hash in bundle.json. With a public key, bundle.json is first compared with its signature,
bundle.sig, for which the package cryptography must be installed. Exits 1 and says what differs. Whoever can change a
bundle can change this file, too: against more than accidents, give a key, and run a copy of this file that you trust.
"""

import sys

if __name__ == "__main__" and not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder: a json.py that somebody put here must not decide. __future__ would be imported, too

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

MANIFEST, SIGNATURE = "bundle.json", "bundle.sig"


def check(folder: Path, key: "Path | None" = None) -> "list[str]":
    """Return what is wrong with the bundle, a sentence each."""
    odd = [name for name in (MANIFEST, SIGNATURE) if is_odd(folder / name)]
    if odd:
        return [f"{name} is a link or a folder, and must be a file" for name in odd]
    try:
        content = (folder / MANIFEST).read_bytes()
        if key and (wrong := wrong_signature(content, folder / SIGNATURE, key)):
            return [wrong]  # the hashes may be anybody's
        try:
            files = dict(json.loads(content)["files"].items())
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            return [f"{folder / MANIFEST} cannot be read: {error}"]
        return list(differences(folder, files))
    except FileNotFoundError as error:
        return [f"{error.filename} is missing"]
    except OSError as error:
        return [f"{error.filename} cannot be read: {error.strerror}"]


def is_odd(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_file())


def differences(folder: Path, files: "dict[str, str]") -> "Iterator[str]":
    """Yield what was added, changed or removed. A link counts as changed: it may lead to what changes later."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    for name in sorted(found.keys() - files.keys() - {MANIFEST, SIGNATURE}):
        yield f"{name} is none of the bundle's files"
    for name, expected in sorted(files.items()):
        if name not in found:
            yield f"{name} is missing"
        elif is_odd(found[name]) or sha256(found[name]) != expected:
            yield f"{name} was changed"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def wrong_signature(content: bytes, signature: Path, key: Path) -> "str | None":
    """Return what is wrong with the signature, or None."""
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        return "the signature cannot be checked: pip install cryptography"
    try:
        public = load_pem_public_key(key.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, Ed25519PublicKey):
        return f"{key} is no public Ed25519 key in PEM: `openssl pkey -in PRIVATE.pem -pubout` writes one"
    if not signature.is_file():
        return f"the bundle is not signed: it has no {signature.name}"
    try:
        public.verify(signature.read_bytes(), content)
    except InvalidSignature:
        return f"{MANIFEST} was not signed with this key, or was changed since"
    return None


def printable(text: str) -> str:
    """Escape what would control the terminal: the name of a file could wipe out what is said of it."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", type=Path, help="the public key of who made the bundle, a PEM file")
    parser.add_argument(
        "--folder", type=Path, default=Path(__file__).parent, help="the bundle, if not this file's folder"
    )
    chosen = parser.parse_args()
    if wrong := check(chosen.folder, chosen.key):
        sys.exit("\n".join(map(printable, wrong)))
    signed = ", and signed with this key" if chosen.key else ""
    print(f"all files are as they were made{signed}")


if __name__ == "__main__":
    main()
