"""Folders and archives: what is read, and what is refused with a message that names the file."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from gence.lab.data import DataError, archives, check, load, load_images
from gence.lab.data.archives import archive_stem, open_container

from .conftest import WRITERS, digit_files, encode, tar_bytes, write_folder, zip_bytes


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_archive_and_folder_agree(suffix: str, wrapped: bool, tmp_path: Path) -> None:
    files = {**digit_files(5, prefix="train/"), **digit_files(2, prefix="test/")}
    folder = load(write_folder(tmp_path / "folder", files))
    path = tmp_path / f"packed{suffix}"
    path.write_bytes(WRITERS[suffix]({("outer/" if wrapped else "") + name: data for name, data in files.items()}))
    packed = load(path)
    for ours, theirs in ((packed.train, folder.train), (packed.test, folder.test)):
        torch.testing.assert_close(ours.images, theirs.images, rtol=0, atol=0)
        assert ours.checksum == theirs.checksum
    assert (packed.train.name, packed.test.name) == ("packed/train", "packed/test")
    assert packed.classes == ("digit0", "digit1", "digit2")
    assert packed.train.counts().tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    "name", ["/etc/digit0/0.png", "../digit0/0.png", "digit0/../../0.png", "C:/digit0/0.png", "a\\0.png"]
)
@pytest.mark.parametrize("suffix", WRITERS)
def test_names_that_point_outside(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(WRITERS[suffix]({**digit_files(2), name: encode_one()}))
    with pytest.raises(
        DataError, match=r"bad.*unsafe name .*; rename it: relative, with '/', and without '\\' and '..'"
    ):
        load(path)


def encode_one() -> bytes:
    return next(iter(digit_files(1).values()))


def test_names_in_utf8_that_do_not_say_so(tmp_path: Path) -> None:
    """As Info-ZIP writes them."""
    path = tmp_path / "photos.zip"
    names = {"digit0": "groß", "digit1": "l", "digit2": "日本"}
    raw = zip_bytes({f"{names[name[:6]]}{name[6:]}": data for name, data in digit_files(2).items()})
    path.write_bytes(_without_utf8_flags(raw))
    with zipfile.ZipFile(path) as archive:
        assert not any("groß" in name for name in archive.namelist())
    assert load(path).train.classes == ("groß", "l", "日本")


def _without_utf8_flags(raw: bytes) -> bytes:
    """The same archive with bit 11 of all flags cleared, before the files and in the directory."""
    found = bytearray(raw)
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw.find(magic)
        while at >= 0:
            found[at + offset + 1] &= ~0x08
            at = raw.find(magic, at + 1)
    return bytes(found)


def test_links(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("digit0/link.png")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    (tmp_path / "a.zip").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"digit0/link\.png is a link"):
        load(tmp_path / "a.zip")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            member = tarfile.TarInfo("digit0/link.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        (tmp_path / "a.tar").write_bytes(buffer.getvalue())
        with pytest.raises(DataError, match=r"digit0/link\.png is a link or a special file"):
            load(tmp_path / "a.tar")


@pytest.mark.parametrize("suffix", WRITERS)
def test_duplicate_names(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"twice{suffix}"
    path.write_bytes(WRITERS[suffix]({**digit_files(2), "./digit0/000.png": encode_one()}))
    with pytest.raises(DataError, match=r"digit0/000\.png appears twice"):
        load(path)


def test_leftovers_are_ignored_and_other_files_are_not(tmp_path: Path) -> None:
    files = digit_files(4)
    clutter = {
        ".DS_Store": b"x",
        "digit0/Thumbs.db": b"x",
        "__MACOSX/digit0/._000.png": b"x",
        "digit1/.hidden.png": b"x",
    }
    root = write_folder(tmp_path / "data", {**files, **clutter})
    assert len(load_images(root)) == 12
    (root / "digit1" / "notes.npy").write_text("x")
    with pytest.raises(DataError, match=r"notes\.npy is not an image"):
        load(root)


def test_huge_files_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.zip"
    path.write_bytes(zip_bytes({**digit_files(2), "digit0/big.png": bytes(300 * 2**20)}, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match=r"digit0/big\.png would unpack to 314572800 bytes"):
        load(path)
    monkeypatch.setattr(archives, "MIN_UNPACK_LIMIT", 2**20)
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(bytes(16 * 2**20)))
    with pytest.raises(DataError, match=r"bomb\.tar\.gz unpacks to more than"):
        load(path)


def test_a_small_file_with_many_pixels(tmp_path: Path) -> None:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    root = write_folder(tmp_path / "data", {**digit_files(2), "digit0/wide.png": buffer.getvalue()})
    with pytest.raises(DataError, match=r"wide\.png has 9000 x 9000 pixels"):
        load(root)


def test_unknown_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a\.rar is neither a folder nor an archive"):
        load(tmp_path / "a.rar")
    with pytest.raises(DataError, match="no folder or archive of that name exists"):
        load(tmp_path / "nothing")
    (tmp_path / "empty.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.zip cannot be read"):
        load(tmp_path / "empty.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"), open_container(tmp_path / "gone.zip"):
        pass


def test_folders_that_go_round(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", digit_files(2))
    (root / "digit0" / "up").symlink_to(root)
    with pytest.raises(DataError, match="remove the link"):
        load(root)
    (root / "digit0" / "up").unlink()
    outside = write_folder(tmp_path / "elsewhere", {"000.png": encode_one(), "001.png": encode_one()})
    (root / "digit9").symlink_to(outside)
    assert load(root).classes == ("digit0", "digit1", "digit2", "digit9")
    (root / "digit0" / "gone.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"gone\.png"):
        load(root)


def test_hidden_links_to_nowhere_are_ignored(tmp_path: Path) -> None:
    """An editor's lock is one, for as long as a file is open."""
    root = write_folder(tmp_path / "data", digit_files(2))
    for place in (root, root / "digit0"):
        (place / ".#lock").symlink_to("user@host.1234")
    (root / ".mount").symlink_to(tmp_path / "nowhere", target_is_directory=True)
    assert len(load_images(root)) == 6
    assert check(root).ok


def test_unreadable_image_names_the_file(tmp_path: Path) -> None:
    files = digit_files(2)
    root = write_folder(tmp_path / "data", {**files, "digit1/bad.jpg": b"not a picture"})
    with pytest.raises(DataError, match=r"digit1/bad\.jpg is not a readable image: its format is not recognised"):
        load(root)
    (tmp_path / "a.zip").write_bytes(zip_bytes({**files, "digit1/bad.jpg": encode_one()[:60]}))
    with pytest.raises(DataError, match=r"a\.zip: digit1/bad\.jpg is not a readable image"):
        load(tmp_path / "a.zip")


class TestSums:
    """SHA256SUMS beside the class folders is verified, whole."""

    def sums(self, files: dict[str, bytes]) -> bytes:
        import hashlib

        return "".join(f"{hashlib.sha256(data).hexdigest()} *./{name}\n" for name, data in files.items()).encode()

    def test_good(self, tmp_path: Path) -> None:
        files = digit_files(3)
        root = write_folder(tmp_path / "data", {**files, "SHA256SUMS": self.sums(files)})
        assert len(load_images(root)) == 9

    def test_changed(self, tmp_path: Path) -> None:
        files = digit_files(3)
        root = write_folder(tmp_path / "data", {**files, "SHA256SUMS": self.sums(files)})
        (root / "digit2" / "001.png").write_bytes(files["digit0/000.png"])
        with pytest.raises(DataError, match=r"digit2/001\.png does not match its line in SHA256SUMS"):
            load_images(root)

    def test_missing_and_unlisted(self, tmp_path: Path) -> None:
        files = digit_files(3)
        fewer = dict(list(files.items())[1:])
        (tmp_path / "a.tar").write_bytes(tar_bytes({**fewer, "SHA256SUMS": self.sums(files)}))
        with pytest.raises(DataError, match=r"digit0/000\.png is missing, but listed in SHA256SUMS"):
            load_images(tmp_path / "a.tar")
        (tmp_path / "b.tar").write_bytes(tar_bytes({**files, "SHA256SUMS": self.sums(fewer)}))
        with pytest.raises(DataError, match=r"digit0/000\.png is not listed in SHA256SUMS"):
            load_images(tmp_path / "b.tar")

    def test_below_a_folder(self, tmp_path: Path) -> None:
        files = digit_files(3)
        sums = {"train/SHA256SUMS": self.sums(files)}
        nested = {**digit_files(3, prefix="train/"), **digit_files(2, prefix="test/"), **sums}
        (tmp_path / "a.zip").write_bytes(zip_bytes(nested))
        assert len(load(tmp_path / "a.zip").train) == 9
        nested["train/digit0/000.png"] = encode(255 - load(tmp_path / "a.zip").train.images[0, 0].numpy())
        (tmp_path / "b.zip").write_bytes(zip_bytes(nested))
        with pytest.raises(DataError, match=r"train/digit0/000\.png does not match"):
            load(tmp_path / "b.zip")

    def test_unreadable_list(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path / "data", {**digit_files(3), "SHA256SUMS": b"\xff hello\n"})
        with pytest.raises(DataError, match="SHA256SUMS, line 1"):
            load_images(root)


def test_more_files_than_a_plain_zip_can_count(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    path.write_bytes(zip_bytes({f"a/{i}.png": b"" for i in range(65_600)}))
    with open_container(path) as container:
        assert len(container.files) == 65_600
    data = path.read_bytes()
    at = data.rindex(b"PK\x06\x06") + 32  # the count in the 64-bit end record
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(DataError, match="its end record says 65601"), open_container(path):
        pass


def test_archive_stem() -> None:
    assert archive_stem(Path("a/cifar10-test.tar.gz")) == "cifar10-test"
    assert archive_stem(Path("a/cifar10-test.TGZ")) == "cifar10-test"
    assert archive_stem(Path("a/folder.d")) == "folder.d"
