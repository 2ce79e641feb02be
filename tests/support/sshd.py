"""A target for ssh: a real sshd on a port of this machine alone, with keys, a home and a configuration of its own."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

COMMAND = """\
#!/bin/sh
set -- {ssh} -F {folder}/ssh_config "$@"
if rm {folder}/sending 2>/dev/null; then stdbuf -o0 head -c 2000000 | "$@"; exit 255; fi
if rm {folder}/bringing 2>/dev/null; then "$@" | stdbuf -o0 head -c 2000000; exit 255; fi
exec "$@"
"""
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Server:
    """A host named `board`, for the command ssh in the folder `bin`. Where a file `sending` or `bringing` is there, it
    is removed, and the next command of ssh ends after two megabytes in that direction."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir(parents=True)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.force = f'cd {self.home} && export HOME={self.home} XDG_CACHE_HOME= && eval "$SSH_ORIGINAL_COMMAND"'
        settings = {
            "Port": self.port, "ListenAddress": "127.0.0.1", "HostKey": folder / "host", "PidFile": "none",
            "AuthorizedKeysFile": folder / "authorized", "StrictModes": "no", "UsePAM": "no",
            "ForceCommand": self.force, "PasswordAuthentication": "no", "PermitRootLogin": "prohibit-password",
            "LogLevel": "ERROR",
        }  # fmt: skip
        (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        host = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host}")
        settings = {
            "HostName": "127.0.0.1", "Port": self.port, "IdentityFile": folder / "user", "IdentitiesOnly": "yes",
            "UserKnownHostsFile": folder / "known", "GlobalKnownHostsFile": "/dev/null",
        }  # fmt: skip
        (folder / "ssh_config").write_text(
            "Host board\n" + "".join(f"  {name} {it}\n" for name, it in settings.items())
        )
        (folder / "bin").mkdir()
        (folder / "bin/ssh").write_text(COMMAND.format(ssh=shutil.which("ssh"), folder=folder))
        (folder / "bin/ssh").chmod(0o755)
        self.start()

    def start(self) -> None:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # in which sshd wants to be alone
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "sshd_config"], stderr=log)
        while self.process.poll() is None:  # on a busy machine it takes many seconds
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        pytest.fail((self.folder / "log").read_text())

    def stop(self) -> None:
        """End the server and each connection, as when a cable is pulled."""
        for child in _children(self.process.pid):
            subprocess.run(["kill", "-9", *map(str, [child, *_children(child)])], stderr=subprocess.DEVNULL)
        self.process.kill()
        self.process.wait()


def _children(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    return [int(each) for each in found.split()]


def require_sshd() -> None:
    if SSHD is None or not all(map(shutil.which, ("ssh", "rsync"))):
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse("there is no sshd or no rsync: apt-get install openssh-server rsync")
