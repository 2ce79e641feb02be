"""A bundle verifies itself, with plain Python and with a key, and lists its parts."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import enginewright
from support.project import make_project

from enginewright.bundle.write import read_key
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256


def openssl(folder, *arguments):
    return subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        assert openssl(folder, "genpkey", "-algorithm", "ed25519", "-out", f"{name}.pem").returncode == 0
        assert openssl(folder, "pkey", "-in", f"{name}.pem", "-pubout", "-out", f"{name}.pub").returncode == 0
    openssl(folder, "genpkey", "-algorithm", "RSA", "-out", "rsa.pem")
    odd = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:secp112r1"]  # which cryptography does not know
    openssl(folder, "genpkey", *odd, "-out", "odd.pem")
    openssl(folder, "pkey", "-in", "odd.pem", "-pubout", "-out", "odd.pub")
    openssl(folder, "pkcs8", "-topk8", "-in", "ours.pem", "-out", "locked.pem", "-passout", "pass:x")
    (folder / "text.pem").write_text("no key")
    return folder


@pytest.fixture(scope="module")
def signed(built, tiny_onnx, machine, keys, tmp_path_factory):
    root = make_project(tmp_path_factory.mktemp("signed") / "project", built, tiny_onnx, machine)
    done = enginewright("bundle", "fp32", "--sign", str(keys / "ours.pem"), "--out", "bundle", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    return root / "bundle"


OLDEST = next(Path.home().glob(".pyenv/versions/3.8.*/bin/python"), None)


def verify(bundle, *arguments, python=sys.executable):
    """Run verify.py as the target does: without Enginewright, and without its packages unless a key is given."""
    isolated = ["-E", "-s"] if arguments else ["-E", "-s", "-S"]
    done = subprocess.run([python, *isolated, "verify.py", *arguments], cwd=bundle, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_bundle_is_whole_and_openssl_agrees_with_its_signature(signed, keys):
    assert verify(signed) == (0, "all files are as they were made\n")
    assert verify(signed, "--key", str(keys / "ours.pub")) == (
        0, "all files are as they were made, and signed with this key\n",
    )  # fmt: skip
    given = ["-pubin", "-inkey", keys / "ours.pub", "-rawin", "-in", "bundle.json", "-sigfile", "bundle.sig"]
    assert openssl(signed, "pkeyutl", "-verify", *map(str, given)).returncode == 0
    assert "bundle.sig" in (signed / "README.md").read_text()


def test_the_oldest_python_that_is_promised_reads_it(signed):
    ast.parse((signed / "verify.py").read_text(), feature_version=(3, 8))
    if OLDEST:
        assert verify(signed, python=OLDEST) == (0, "all files are as they were made\n")


def change(name):
    return lambda bundle: (bundle / name).write_bytes((bundle / name).read_bytes()[:-1] + b"!")


def replace_by_link(bundle):
    shutil.move(bundle / "infer.py", bundle.parent / "infer.py")
    (bundle / "infer.py").symlink_to(bundle.parent / "infer.py")


def link_manifest(bundle):
    shutil.move(bundle / "bundle.json", bundle.parent / "bundle.json")
    (bundle / "bundle.json").symlink_to(bundle.parent / "bundle.json")


def sign_with_a_folder(bundle):
    (bundle / "bundle.sig").unlink()
    (bundle / "bundle.sig").mkdir()


def hash_again(bundle):
    """Change a file and its hash, as one who means harm would."""
    change("engine/engine.blob")(bundle)
    document = json.loads((bundle / "bundle.json").read_text())
    document["files"]["engine/engine.blob"] = sha256(bundle / "engine/engine.blob")
    (bundle / "bundle.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("harm", "key", "said"),
    [
        (change("engine/engine.blob"), None, "engine/engine.blob was changed"),
        (change("infer.py"), "ours", "infer.py was changed"),
        (lambda bundle: (bundle / "labels.txt").unlink(), None, "labels.txt is missing"),
        (lambda bundle: (bundle / "runtime.pyc").write_text(""), None, "runtime.pyc is none of the bundle's files"),
        (lambda bundle: (bundle / "engine/more").symlink_to("/etc"), None, "engine/more is none of the bundle's files"),
        (lambda bundle: (bundle / "json.py").write_text("exit()"), None, "json.py is none of the bundle's files"),
        (lambda bundle: (bundle / "__future__.py").write_text("exit()"), "ours", "__future__.py is none of the bundle"),
        (
            lambda bundle: (bundle / "\x1b[2Jall is well").write_text(""),
            None,
            r"\x1b[2Jall is well is none of the bundle's",
        ),
        (replace_by_link, None, "infer.py was changed"),
        (link_manifest, None, "bundle.json is a link or a folder"),
        (sign_with_a_folder, None, "bundle.sig is a link or a folder"),
        (lambda bundle: (bundle / "bundle.json").unlink(), None, "bundle.json is missing"),
        (lambda bundle: (bundle / "bundle.json").write_text("[" * 9999), None, "cannot be read"),
        (lambda bundle: (bundle / "bundle.json").write_text('{"files": 3}'), None, "cannot be read"),
        (hash_again, None, "all files are as they were made"),  # what only a key can tell
        (hash_again, "ours", "bundle.json was not signed with this key, or was changed since"),
        (lambda bundle: None, "theirs", "bundle.json was not signed with this key, or was changed since"),
        (lambda bundle: (bundle / "bundle.sig").unlink(), "ours", "the bundle is not signed: it has no bundle.sig"),
        (lambda bundle: (bundle / "bundle.sig").write_bytes(b""), "ours", "was not signed with this key"),
        (lambda bundle: None, "text", "is no public Ed25519 key in PEM"),
        (lambda bundle: None, "rsa", "is no public Ed25519 key in PEM"),
        (lambda bundle: None, "odd", "is no public Ed25519 key in PEM"),
        (lambda bundle: None, "nothing", "is missing"),
    ],
)
def test_what_is_wrong_is_said(signed, keys, tmp_path, harm, key, said):
    bundle = tmp_path / "bundle"
    shutil.copytree(signed, bundle, symlinks=True)
    harm(bundle)
    (keys / "text.pub").write_text("no key")
    openssl(keys, "pkey", "-in", "rsa.pem", "-pubout", "-out", "rsa.pub")
    code, text = verify(bundle, *(["--key", str(keys / f"{key}.pub")] if key else []))
    assert said in text
    assert code == (0 if said.startswith("all files") else 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text.pem", "is no private key in PEM"),
        ("ours.pub", "is no private key in PEM"),
        ("rsa.pem", "is another kind of key, and Ed25519 is needed"),
        ("locked.pem", "is encrypted"),
    ],
)
def test_a_key_that_cannot_sign_is_refused(keys, name, said):
    with pytest.raises(EnginewrightError, match=said):
        read_key(keys / name)


def test_the_list_of_parts_has_the_model_with_its_hashes_and_each_package_in_its_version(signed):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (signed / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    hashes = {part["name"]: part["hashes"][0]["content"] for part in document["components"] if part["type"] == "file"}
    assert hashes["model.onnx"] == sha256(signed / "model.onnx")
    assert hashes["engine/engine.blob"] == sha256(signed / "engine/engine.blob")
    packages = {part["name"]: part["version"] for part in document["components"] if part["type"] == "library"}
    asked = dict(line.split("==") for line in (signed / "requirements.txt").read_text().split())
    assert asked.items() <= packages.items()
    assert set(asked) >= {"openvino", "numpy", "pillow"}
    assert "timestamp" not in document["metadata"]
