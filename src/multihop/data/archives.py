"""Taking one file out of a zip or tar archive that somebody else made."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from multihop.errors import DataError

DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
"""What the two libraries raise for archives that are damaged, encrypted or packed in an unknown way."""
LARGEST = 4 * 2**30
"""Bytes of one file at most, downloaded or unpacked: far above any of the benchmarks'."""
BLOCK = 1 << 20


def extract(archive: Path, member: str, target: Path) -> None:
    """Write the content of ``member`` to ``target``.

    The content is streamed to a name of our own, so no name in the archive decides where anything lands.
    Still, an archive with a name that leads out of its folder is refused as a whole: it was made to harm.
    Raises DataError for such a name, a link, a damaged archive, a missing member or one of more than LARGEST bytes.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as z:
                _check(archive, member, z.namelist())
                if z.getinfo(member).external_attr >> 16 & 0o170000 == 0o120000:
                    raise DataError(f"{archive}: {member} is a link, not a file")
                with z.open(member) as source:
                    _copy(archive, member, source, target)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as t:
                _check(archive, member, t.getnames())
                source = t.extractfile(member) if t.getmember(member).isfile() else None
                if source is None:
                    raise DataError(f"{archive}: {member} is a link or folder, not a file")
                with source:
                    _copy(archive, member, source, target)
        else:
            raise DataError(f"{archive}: neither a zip nor a tar archive")
    except DAMAGE as e:
        target.unlink(missing_ok=True)
        if isinstance(e, OSError) and e.errno:  # the disk's, such as no room: no fault of the archive
            raise
        raise DataError(f"{archive}: damaged or unreadable archive ({e}); delete it and fetch again") from e


def _copy(archive: Path, member: str, source: IO[bytes], target: Path) -> None:
    """What is counted is what comes out: a size that the archive declares may be a lie."""
    size = 0
    with target.open("wb") as f:
        while block := source.read(BLOCK):
            size += len(block)
            if size > LARGEST:
                break
            f.write(block)
    if size > LARGEST:
        target.unlink()
        raise DataError(f"{archive}: {member} is over {LARGEST / 2**30:g} GiB unpacked; not used: check its source")


def _check(archive: Path, member: str, names: list[str]) -> None:
    for name in names:
        posix, windows = PurePosixPath(name), PureWindowsPath(name)
        if posix.is_absolute() or windows.anchor or ".." in windows.parts:
            raise DataError(f"{archive}: the name {name!r} leads out of the archive's folder; not opened")
    if member not in names:
        raise DataError(f"{archive}: no member {member!r}; it holds {', '.join(names[:10]) or 'nothing'}")
