"""Downloads, from a server on this machine: small files in the public data sets' own formats."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gence.lab.data import DataError, NotAtHandError, default_cache_dir, load, load_images, names as known
from gence.lab.data.download import fetch
from gence.lab.data.names import KNOWN, RemoteFile
from tests.file_server import requests, serving

from .conftest import file_size_limit, tar_bytes

RNG = np.random.default_rng(0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "public"
    folder.mkdir()
    with serving(folder) as url:
        yield url, folder


def serve(server: tuple[str, Path], name: str, data: bytes, split: str = "all") -> RemoteFile:
    url, folder = server
    (folder / name).write_bytes(data)
    return RemoteFile(f"{url}/{name}", hashlib.sha256(data).hexdigest(), split)


def records(labels: list[list[int]]) -> tuple[bytes, np.ndarray]:
    pixels = RNG.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    return b"".join(bytes(head) + image.tobytes() for head, image in zip(labels, pixels, strict=True)), pixels


def use(monkeypatch: pytest.MonkeyPatch, name: str, *files: RemoteFile) -> None:
    monkeypatch.setitem(known.KNOWN, name, replace(KNOWN[name], files=files))


def test_cifar10(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, first = records([[0], [2]])
    two, second = records([[1], [1]])
    test, held = records([[2], [1], [0]])
    archive = tar_bytes(
        {
            "b/data_batch_2.bin": two,
            "b/data_batch_1.bin": one,
            "b/test_batch.bin": test,
            "b/batches.meta.txt": b"airplane\nautomobile\nbird\n\n",
            "b/readme.html": b"x",
        },
        "w:gz",
    )
    use(monkeypatch, "cifar10", serve(server, "cifar-10-binary.tar.gz", archive))
    splits = load("cifar10")
    torch.testing.assert_close(splits.train.images, torch.from_numpy(np.concatenate([first, second])), rtol=0, atol=0)
    torch.testing.assert_close(splits.test.images, torch.from_numpy(held), rtol=0, atol=0)
    assert splits.train.labels.tolist() == [0, 2, 1, 1]
    assert splits.classes == ("airplane", "automobile", "bird")
    assert splits.test.name == "cifar10/test"
    (kept,) = (default_cache_dir() / "downloads").iterdir()
    public = server[1] / "cifar-10-binary.tar.gz"
    assert kept.stat().st_mode == public.stat().st_mode, "the umask says who may read a shared cache"
    load("cifar10")
    load("cifar10", image_size=16)
    assert len(requests) == 1  # decoded images and the file itself are both kept


def test_without_permission_only_what_is_at_hand_is_read(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data, _ = records([[0], [1], [0], [1]])
    files = {"data_batch_1.bin": data, "test_batch.bin": data, "batches.meta.txt": b"a\nb\n"}
    use(monkeypatch, "cifar10", serve(server, "cifar-10-binary.tar.gz", tar_bytes(files, "w:gz")))
    cache = tmp_path / "another-cache"
    for _ in range(2):
        with pytest.raises(NotAtHandError, match=r"cifar-10-binary\.tar\.gz is not in .* downloads are off"):
            load("cifar10", cache_dir=cache, download=False)
        with pytest.raises(NotAtHandError):
            load_images("cifar10", cache_dir=cache, download=False)
    assert requests == []
    expected = load("cifar10", cache_dir=cache)
    assert len(requests) == 1
    for size, shape in ((None, 32), (16, 16)):  # the images are decoded, then the file alone is available
        assert load("cifar10", image_size=size, cache_dir=cache, download=False).train.image_shape == (3, shape, shape)
    assert load("cifar10", cache_dir=cache, download=False).train.checksum == expected.train.checksum
    assert len(requests) == 1


def test_cifar100_takes_the_fine_label(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = records([[9, 0], [7, 1]])
    test, _ = records([[7, 1], [9, 0]])
    files = {"train.bin": train, "test.bin": test, "fine_label_names.txt": b"apple\nbear\n"}
    use(monkeypatch, "cifar100", serve(server, "cifar-100-binary.tar.gz", tar_bytes(files, "w:gz")))
    splits = load("cifar100")
    assert splits.train.labels.tolist() == [0, 1]
    assert splits.test.labels.tolist() == [1, 0]
    assert splits.classes == ("apple", "bear")


def test_svhn_fetches_only_the_part_asked_for(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from io import BytesIO

    from scipy.io import savemat

    pixels = RNG.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    files = []
    for split in ("train", "test"):
        buffer = BytesIO()
        savemat(buffer, {"X": pixels, "y": np.array([[10], [1], [9], [10]], dtype=np.uint8)})
        files.append(serve(server, f"{split}_32x32.mat", buffer.getvalue(), split))
    use(monkeypatch, "svhn", *files)
    images = load_images("svhn")
    assert images.labels.tolist() == [0, 1, 9, 0]
    torch.testing.assert_close(images.images[1], torch.from_numpy(pixels[..., 1]).permute(2, 0, 1), rtol=0, atol=0)
    assert requests == ["/test_32x32.mat"]
    assert len(load("svhn").train) == 4


def test_wrong_checksum(server: tuple[str, Path], tmp_path: Path) -> None:
    remote = serve(server, "a.bin", b"right")
    (server[1] / "a.bin").write_bytes(b"wrong")
    with pytest.raises(DataError, match=r"a\.bin has the wrong checksum"):
        fetch(remote, tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


def test_damaged_copy_is_fetched_again(server: tuple[str, Path], tmp_path: Path) -> None:
    remote = serve(server, "a.bin", b"right")
    (tmp_path / "a.bin").write_bytes(b"wrong")
    assert fetch(remote, tmp_path, progress=True).read_bytes() == b"right"
    assert fetch(remote, tmp_path).read_bytes() == b"right"
    assert len(requests) == 1


def test_mirror_goes_first(server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = serve(server, "a.bin", b"right")
    unreachable = replace(remote, url="http://127.0.0.1:9/a.bin")
    with pytest.raises(DataError, match=r"a\.bin could not be downloaded .*GENCE_DATA"):
        fetch(unreachable, tmp_path)
    monkeypatch.setenv("GENCE_MIRROR", server[0] + "/")
    assert fetch(unreachable, tmp_path).read_bytes() == b"right"
    (server[1] / "a.bin").unlink()
    (tmp_path / "a.bin").unlink()
    with pytest.raises(DataError, match="404"):
        fetch(unreachable, tmp_path)


def test_a_wrong_mirror_does_not_stop_the_right_site(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = serve(server, "a.bin", b"right")
    (server[1] / "mirror").mkdir()
    (server[1] / "mirror" / "a.bin").write_bytes(b"wrong")
    monkeypatch.setenv("GENCE_MIRROR", f"{server[0]}/mirror")
    assert fetch(remote, tmp_path).read_bytes() == b"right"
    assert requests == ["/mirror/a.bin", "/a.bin"]


def test_full_disk_leaves_nothing_behind(server: tuple[str, Path], tmp_path: Path) -> None:
    remote = serve(server, "a.bin", bytes(10_000))
    with file_size_limit(4096), pytest.raises(DataError, match=r"cannot write .*a\.bin: File too large.*GENCE_CACHE"):
        fetch(remote, tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


def test_cut_off_download(server: tuple[str, Path], tmp_path: Path) -> None:
    """A server that announces more than it sends."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nshort")
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    remote = RemoteFile(f"http://127.0.0.1:{listener.getsockname()[1]}/a.bin", "0" * 64, "all")
    with pytest.raises(DataError, match=r"a\.bin"):
        fetch(remote, tmp_path / "downloads")
    thread.join()
    listener.close()
    assert list((tmp_path / "downloads").iterdir()) == []


def test_other_contents(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "cifar10", serve(server, "c.tar.gz", tar_bytes({"x.bin": b"1"}, "w:gz")))
    with pytest.raises(DataError, match="is not a binary archive of cifar10"):
        load("cifar10")
    files = {"train.bin": b"123", "test.bin": b"123", "fine_label_names.txt": b"a"}
    use(monkeypatch, "cifar100", serve(server, "d.tar.gz", tar_bytes(files, "w:gz")))
    with pytest.raises(DataError, match="has 3 bytes, which is not a multiple of 3074"):
        load("cifar100")
    use(monkeypatch, "svhn", serve(server, "e.mat", b"no matlab file at all" * 20, "test"))
    with pytest.raises(DataError, match="is not an SVHN file"):
        load_images("svhn")
