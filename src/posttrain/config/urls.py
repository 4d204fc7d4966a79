"""Run folders given as a URL: which URLs are allowed, and the local folder in which the run writes its files."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from posttrain.config.text import redact
from posttrain.errors import ConfigError

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "file": ""}
"""Protocol of fsspec -> the package that it needs. These storages write a file completely or not at all."""


def is_url(folder: str | os.PathLike[str]) -> bool:
    """Return true for a URL, and false for a folder of this machine.

    >>> is_url("s3://bucket/run"), is_url("runs/first")
    (True, False)
    """
    return "://" in os.fspath(folder)


def wrong_url(setting: str, url: str) -> ConfigError | None:
    """Return the error in a URL for a run folder, if any. Does not contact the storage."""
    protocol, parts = url.partition("://")[0], urlsplit(url)
    if protocol not in PACKAGES:
        return ConfigError(
            given=f"{setting} = {redact(url)}: {protocol}:// is not a storage for runs",
            allowed=f"a folder, or a URL that begins with {', '.join(f'{one}://' for one in PACKAGES)}",
            fix=f"Set {setting} = s3://bucket/folder, or to a folder of this machine.",
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        return ConfigError(
            given=f"{setting} = {redact(url)}, which is more than the address of a folder",
            allowed=f"{protocol}://PLACE/FOLDER, without names, passwords or options: the run writes the URL into "
            "files",
            fix="Give credentials and the address of the storage in the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL) or in the files that the tools of the storage read.",
        )
    empty = not parts.path.strip("/") or (protocol != "file" and not parts.netloc) or ".." in parts.path.split("/")
    if empty or (protocol == "file" and parts.netloc):
        form = "file:///absolute/folder" if protocol == "file" else f"{protocol}://bucket/folder"
        return ConfigError(
            given=f"{setting} = {url}, which names no folder",
            allowed=form,
            fix=f"Set {setting} = {form}.",
        )
    return None


def working_folder(url: str) -> Path:
    """Return the local folder of a run whose files are copied to `url`: in POSTTRAIN_RUNS, else in runs/.

    >>> working_folder("s3://bucket/runs/first/")
    PosixPath('runs/first-3ecffbec')
    """
    url = url.rstrip("/")
    name = re.sub(r"[^\w.-]", "-", url.rpartition("/")[2])
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return Path(os.environ.get("POSTTRAIN_RUNS") or "runs").expanduser() / f"{name}-{digest}"
