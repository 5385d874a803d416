"""Files that are broken, hostile or of another kind give a one-line message, never a crash or a long wait."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import sys
import tempfile
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from qkcore import cli, experiments
from qkcore.experiments import _configs, _report
from qkcore.experiments._files import read_json
from qkcore.experiments.image_diffusion import _images
from qkcore.experiments.transformer_diagnostics import _torch_file

from .quick_runs import Results

pytest.importorskip("matplotlib")
pytest.importorskip("yaml")


# ---- folders of results --------------------------------------------------------------------------


@pytest.fixture
def folder(results: Results, tmp_path: Path) -> Path:
    shutil.copytree(results("regimes").folder, tmp_path / "regimes-quick")
    return tmp_path / "regimes-quick"


def one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("qkcore: error: ") and shown.err.count("\n") == 1
    assert len(shown.err) < 1500
    return shown.err


TEXTS = {
    "empty": b"",
    "list": b"[]",
    "text": b'"x"',
    "null": b"null",
    "number": b"1",
    "object": b"{}",
    "cut": b'{"cases": {"a": ',
    "wrong types": b'{"cases": [1, 2], "settings": 3, "files": [], "experiment": "regimes"}',
    "deep": b"[" * 100_000,
    "long number": b"[" + b"9" * 5000 + b"]",
    "binary": bytes(range(256)) * 4,
    "not UTF-8": b'{"a": "\xff"}',
    "BOM": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("file", ["metrics.json", "manifest.json", "cases.csv"])
@pytest.mark.parametrize("kind", TEXTS)
def test_broken_results(
    folder: Path, file: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / file).write_bytes(TEXTS[kind])
    page = folder.parent / "report.html"
    if file == "cases.csv" and cli.main(["report", str(folder.parent)]) == 0:
        # For a table without rows, or one that no figure needs, the page says that it was changed.
        assert "These files were changed after the run: cases.csv" in page.read_text()
        return
    message = one_line(["report", str(folder.parent)], capsys)
    assert str(folder) in message and not page.exists()
    if file != "cases.csv":  # a run that is there shows its verdicts, which are not in the table
        message = one_line(["run", "regimes", "--quick", "--out", str(folder.parent)], capsys)
        assert str(folder) in message


@pytest.mark.parametrize("file", ["metrics.json", "manifest.json", "cases.csv", "config.yaml"])
@pytest.mark.parametrize("what", ["folder", "link", "dangling link", "pipe"])
def test_something_else_in_the_place_of_a_file(
    folder: Path, file: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / file
    secret = folder.parent / "secret"
    os.rename(path, secret)
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(secret if what == "link" else "/nonexistent")
    message = one_line(["report", str(folder.parent)], capsys)
    wanted = {"folder": "got a folder", "pipe": "got a pipe"}.get(what, "is a symbolic link")
    assert str(path) in message and wanted in message


@pytest.mark.parametrize("key", experiments._manifest.FIELDS)
@pytest.mark.parametrize("value", [..., [], "x", {"a": 1}, 1e400])
def test_manifests_with_one_wrong_entry(
    folder: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing, or of another type: a message, or a page when it does not matter."""
    manifest = json.loads((folder / "manifest.json").read_text())
    if value is ...:
        del manifest[key]
    else:
        manifest[key] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    status = cli.main(["report", str(folder.parent)])
    shown = capsys.readouterr()
    assert status == (2 if shown.err else 0) and shown.err.count("\n") == status // 2
    if value is ... or value == []:
        assert status == 2 and str(folder) in shown.err


def test_results_of_another_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["versions"]["qkcore"] = "0.0.1"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.json").write_text("{}")
    message = one_line(["report", str(folder.parent)], capsys)
    assert "another version of qkcore, 0.0.1" in message
    assert f"qkcore run regimes --quick --force --out {folder.parent}" in message


def test_mistakes_of_ours_keep_their_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over whole files of this version an error is not blamed on the files."""
    monkeypatch.setattr(experiments.Experiment, "claims", lambda *_: {}["ours"])
    with pytest.raises(KeyError, match="ours"):
        _report.write_report(folder.parent)


def test_links_are_not_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures that the run did not draw are named, not shown; a link in the place of its own is refused."""
    secret = folder.parent / "secret"
    secret.write_bytes(b"\x89PNG the bytes of a secret")
    encoded = "dGhlIGJ5dGVzIG9mIGEgc2VjcmV0"  # the bytes of a secret
    (folder / "x.png").symlink_to(secret)
    (folder / "y.png").symlink_to("../secret")
    shutil.copy(secret, folder / "photo<.png")
    text = _report.write_report(folder.parent).read_text()
    assert encoded not in text and text.count("data:image/png") == 1
    assert "Pictures that this run did not draw are not shown: photo&lt;.png, x.png, y.png." in text
    (folder / "regimes.png").unlink()
    (folder / "regimes.png").symlink_to("../secret")
    message = one_line(["report", str(folder.parent)], capsys)
    assert "regimes.png: is a symbolic link, which is not followed" in message


def test_a_folder_that_is_a_link_is_not_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "regimes-quick").symlink_to(folder)
    message = one_line(["report", str(other)], capsys)
    assert "other/regimes-quick: is a symbolic link, which is not followed" in message
    shutil.copytree(folder, tmp_path / "elsewhere")
    (tmp_path / "linked").symlink_to(tmp_path)  # the folder that is asked for may be one
    assert _report.write_report(tmp_path / "linked").exists()


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/hostname.png", "a/../../b.png"])
def test_pictures_elsewhere_are_not_shown(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": ""}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "which is not in the folder" in one_line(["report", str(folder.parent)], capsys)


@pytest.mark.skipif(not hasattr(os, "fork") or os.getuid() != 0, reason="needs root, to be another")
def test_what_may_not_be_read(folder: Path) -> None:
    """Files and folders without permission, for a user who is not root."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place, "out")
        shutil.copytree(folder.parent, out)
        for path in (Path(place), out):
            path.chmod(0o755)
        inner = out / folder.name
        for path in (inner / "metrics.json", inner / "manifest.json", inner, out):
            mode = path.stat().st_mode
            path.chmod(0)
            with Path(place, "message").open("w+") as message:
                pid = os.fork()
                if pid == 0:
                    sys.stderr = message
                    os.setgid(65534)
                    os.setuid(65534)
                    status = cli.main(["report", str(out)])
                    message.flush()
                    os._exit(status)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
                message.seek(0)
                text = message.read()
            assert f"{path}: cannot be read: Permission denied" in text and text.count("\n") == 1
            path.chmod(mode)


# ---- settings ------------------------------------------------------------------------------------


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
    return "\n".join(lines)


HOSTILE: dict[str, tuple[str, str]] = {
    "aliases": (bomb(), r"wanted every value written out, got the alias \*a0"),
    "an alias of itself": ("n: &n [*n]", "alias"),
    "merge keys": ("a: &a {n: 1}\n<<: *a", "alias"),
    "deep lists": ("ranks: " + "[" * 20_000, "levels"),
    "deep mappings": ("ranks: " + "{a: " * 8000, "levels"),
    "deep blocks": ("\n".join(" " * k + "a:" for k in range(200)), "levels"),
    "nested sequences": ("- " * 16_000, "levels"),
    "questions": ("? " * 16_000, "levels|not valid YAML"),
    "5000 digits": ("n: " + "9" * 5000, "at most 100 digits, got 5000"),
    "hexadecimal": ("n: 0x" + "f" * 20_000, "at most 100 digits"),
    "base 60": ("n: " + ":".join(["59"] * 10_000), "at most 100 digits"),
    "binary digits": (
        "n: 0b" + "1" * 90,
        r"wanted a number below 2\*\*63, got a number of 90 bits",
    ),
    "a number for a real one": ("beta: 1" + "0" * 90, r"below 2\*\*63"),
    "a number beyond all": ("beta: 1" + "0" * 400 + ".0", "finite"),
    "infinity": ("beta: .inf", "finite"),
    "not a number": ("beta: .nan", "finite"),
    "text for a real one": ("beta: infinity", "finite"),
    "huge": ("# " + "x" * 10**7, "at most 32768 characters"),
    "as large as may be": ("n: " + "'" + "x" * 32_000 + "'", "wanted a whole number, got text"),
    "many keys": ("\n".join(f"k{k}: 1" for k in range(3000)), "at most 5000 keys and values"),
    "many flow keys": ("{" + ",".join(f"k{k}: 1" for k in range(3000)) + "}", "at most 5000"),
    "a tag without a value": ("n: !!int ''", "not valid YAML"),
    "a wrong tag": ("n: !!bool x", "not valid YAML"),
    "a wrong time": ("n: !!timestamp x", "not valid YAML"),
    "no such day": ("n: 2020-13-45", "not valid YAML"),
    "a Python object": ("n: !!python/object/apply:os.system [true]", "not valid YAML"),
    "bytes": ("n: !!binary AAAA", "wanted a whole number"),
    "a set": ("ranks: !!set {8, 9}", "wanted a list"),
    "control characters": ("n: \x00", "not valid YAML"),
    "two documents": ("n: 5\n---\nn: 6", "not valid YAML"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_settings(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, message = HOSTILE[kind]
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    shown = one_line(
        ["run", "trefoil", "--config", str(file), "--out", str(tmp_path / "out")], capsys
    )
    assert "settings.yaml" in shown and re.search(message, shown), shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["aliases", "deep lists", "5000 digits", "hexadecimal"])
def test_hostile_values_on_the_command_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = HOSTILE[kind][0].partition(": ")[2]
    one_line(["run", "trefoil", "--set", f"n={value}", "--out", str(tmp_path / "out")], capsys)


def test_settings_without_an_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["run", "trefoil", "--out", str(tmp_path / "out"), "--config"]
    assert "at most 32768 characters" in one_line([*arguments, "/dev/zero"], capsys)
    assert "Is a directory" in one_line([*arguments, str(tmp_path)], capsys)
    assert "seed: wanted an integer" in one_line([*arguments[:-1], "--seed", str(2**70)], capsys)
    (tmp_path / "latin.yaml").write_bytes(b"n: \xe9")
    assert "not text in UTF-8" in one_line([*arguments, str(tmp_path / "latin.yaml")], capsys)


@pytest.mark.parametrize(
    ("panel", "message"),
    [
        ("{figure: 1a, fields: l2}", "unknown key 'fields'; did you mean field"),
        ("{figure: [1]}", "figure: wanted text, got a list"),
        ("{figure: 1a, steps: 2020-01-01}", "steps: wanted a whole number"),
        ("{1: 2}", "unknown key '1'"),
    ],
)
def test_mappings_inside_settings_are_checked(
    panel: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "gaussian-cones", "--out", str(tmp_path / "out")]
    assert message in one_line([*arguments, "--set", f"panels=[{panel}]"], capsys)


def test_shipped_settings_are_far_from_the_bounds() -> None:
    for name in experiments.names():
        assert len(_configs.shipped_text(name)) < _configs.MOST_CHARACTERS / 4
        assert _configs.resolve(name, quick=True)


# ---- files of torch.save -------------------------------------------------------------------------


class Storage:
    def __init__(self, kind: str, key: str, values: np.ndarray[Any, Any]) -> None:
        self.kind, self.key, self.values = kind, key, values


Described = dict[str, tuple[Any, Any, Any, Any]]


def torch_file(tensors: Described, counts: dict[str, int] | None = None) -> bytes:
    """What torch.save writes in its older format: (storage, offset, sizes, strides) by name."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def rebuild(*_: Any) -> None:
        raise AssertionError("only its name is used")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]
    kinds = {}
    for name in ("FloatStorage", "LongStorage"):
        kinds[name] = type(name, (), {"__module__": "torch"})
        setattr(torch, name, kinds[name])

    class Tensor:
        def __init__(self, parts: Any) -> None:
            self.parts = parts

        def __reduce__(self) -> Any:
            return rebuild, (*self.parts, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            if not isinstance(thing, Storage):
                return None
            count = (counts or {}).get(thing.key, len(thing.values))
            return ("storage", kinds[thing.kind], thing.key, "cpu", count, None)

    storages = {parts[0].key: parts[0] for parts in tensors.values()}
    out = io.BytesIO()
    with mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}):
        for thing in (_torch_file.MAGIC, 1001, {"little_endian": True}):
            pickle.dump(thing, out, protocol=2)
        Pickler(out, protocol=2).dump(OrderedDict((n, Tensor(t)) for n, t in tensors.items()))
        pickle.dump(sorted(storages), out, protocol=2)
    for key in sorted(storages):
        values = storages[key].values
        out.write(struct.pack("<q", len(values)) + values.tobytes())
    return out.getvalue()


def floats(count: int, key: str = "0") -> Storage:
    return Storage("FloatStorage", key, np.arange(count, dtype=np.float32) + 0.5)


def naive(storage: Storage, offset: int, sizes: Any, strides: Any) -> np.ndarray[Any, Any] | None:
    """The tensor entry by entry; None when an entry is not in the storage."""
    out = np.empty(sizes, storage.values.dtype)
    for index in np.ndindex(*sizes):
        at = offset + sum(i * s for i, s in zip(index, strides, strict=True))
        if not 0 <= at < len(storage.values):
            return None
        out[index] = storage.values[at]
    return out


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], dict[str, Any]]:
    def get(content: bytes) -> dict[str, Any]:
        (tmp_path / "model.bin").write_bytes(content)
        return _torch_file.read(tmp_path / "model.bin")

    return get


def test_tensors_of_every_layout(read: Callable[[bytes], dict[str, Any]]) -> None:
    s, longs = floats(24), Storage("LongStorage", "1", np.arange(5) - 2)
    tensors: Described = {
        "whole": (s, 0, (4, 6), (6, 1)),
        "turned": (s, 0, (6, 4), (1, 6)),
        "part": (s, 7, (2, 3), (6, 2)),
        "number": (s, 3, (), ()),
        "empty": (s, 24, (0, 3), (3, 1)),
        "whole numbers": (longs, 1, (4,), (1,)),
    }
    found = read(torch_file(tensors))
    assert list(found) == list(tensors)
    for name, parts in tensors.items():
        assert np.array_equal(found[name], naive(*parts)), name  # type: ignore[arg-type]
        assert found[name].dtype == parts[0].values.dtype


def test_random_layouts_against_one_entry_at_a_time(
    read: Callable[[bytes], dict[str, Any]],
) -> None:
    """Offsets, sizes and strides that are drawn: the tensor, or a ValueError when an entry is outside."""
    rng = np.random.default_rng(3)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(300):
        s = floats(int(rng.integers(0, 30)))
        axes = int(rng.integers(0, 4))
        sizes = tuple(int(n) for n in rng.integers(0, 5, axes))
        strides = tuple(int(n) for n in rng.integers(-1 if rng.random() < 0.2 else 0, 9, axes))
        offset = int(rng.integers(-1 if rng.random() < 0.1 else 0, 12))
        wanted = naive(s, offset, sizes, strides)
        try:
            found = read(torch_file({"x": (s, offset, sizes, strides)}))["x"]
        except ValueError:
            outcomes["refused"] += 1
            repeated = wanted is not None and wanted.size > len(s.values)
            odd = offset < 0 or offset > len(s.values) or min(strides, default=0) < 0
            assert wanted is None or repeated or odd
            continue
        outcomes["read"] += 1
        assert wanted is not None and np.array_equal(found, wanted)
    assert min(outcomes.values()) > 50


@pytest.mark.parametrize(
    "parts",
    [
        (0, (2**40,), (0,)),
        (0, (2**62, 2**62), (1, 1)),
        (2**62, (1,), (1,)),
        (0, (2,), (2**62,)),
        (0, (1,) * 40, (1,) * 40),
        (0, (2, 2), (1,)),
        (0, (2.0,), (1,)),
        (0, (True,), (1,)),
        (0, ("2",), (1,)),
        (0, 2, 1),
        (None, (2,), (1,)),
    ],
)
def test_layouts_that_cannot_be(read: Callable[[bytes], dict[str, Any]], parts: Any) -> None:
    with pytest.raises(ValueError, match=r"torch\.save"):
        read(torch_file({"x": (floats(6), *parts)}))


@pytest.mark.parametrize("count", [-1, 0, 5, 7, 2**62])
def test_storages_of_another_size(read: Callable[[bytes], dict[str, Any]], count: int) -> None:
    """The dictionary and the storage must agree, and the file must have that many numbers."""
    with pytest.raises(ValueError, match=r"torch\.save"):
        read(torch_file({"x": (floats(6), 0, (2,), (1,))}, {"0": count}))
    whole = torch_file({"x": (floats(6), 0, (2,), (1,))})
    with pytest.raises(ValueError, match=r"torch\.save"):
        read(whole[:-32] + struct.pack("<q", count) + whole[-24:])


def test_other_functions_are_not_called(
    read: Callable[[bytes], dict[str, Any]], tmp_path: Path
) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(ValueError, match=r"wanted tensors only, got posix.mkdir"):
        read(pickle.dumps(Evil(), protocol=2))
    assert not (tmp_path / "made").exists()


def corrupted(whole: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Every truncation, then bytes changed, put in, left out and exchanged at random."""
    for cut in range(len(whole)):
        yield whole[:cut]
    yield whole + b"\0"
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            at, kind = int(rng.integers(len(data))), rng.integers(4)
            if kind == 0:
                data[at] = int(rng.integers(256))
            elif kind == 1:
                data[at] ^= 1 << int(rng.integers(8))
            elif kind == 2:
                del data[at]
            else:
                data[at:at] = rng.bytes(int(rng.integers(1, 5)))
        yield bytes(data)


def test_corrupted_files_of_torch(read: Callable[[bytes], dict[str, Any]]) -> None:
    """A ValueError, or arrays that hold numbers of the file; never a read outside of it."""
    longs = Storage("LongStorage", "1", np.arange(4))
    a, b = (floats(6), 0, (2, 3), (3, 1)), (longs, 1, (3,), (1,))
    whole = torch_file({"a": a, "b": b, "c": (a[0], 1, (2, 2), (1, 2))})
    assert len(read(whole)) == 3
    refused = 0
    for data in corrupted(whole, np.random.default_rng(5)):
        try:
            found = read(data)
        except ValueError:
            refused += 1
            continue
        for array in found.values():
            assert array.dtype in (np.float32, np.int64) and array.nbytes <= len(data)
            assert all(entry.tobytes() in data for entry in array.ravel())
    assert refused > len(whole)


def test_a_memo_with_holes_takes_no_memory(read: Callable[[bytes], dict[str, Any]]) -> None:
    """LONG_BINPUT at 2**31: the unpickler would reserve gigabytes for the places before it."""
    for code in (b"r" + struct.pack("<I", 2**31), b"p2147483648\n"):
        with pytest.raises(ValueError, match="a memo with holes"):
            read(b"\x80\x02K\x01" + code + b".")
    for code in (b"\x8d" + struct.pack("<Q", 2**60), b"X" + struct.pack("<I", 2**32 - 1)):
        with pytest.raises(ValueError, match=r"torch\.save"):
            read(b"\x80\x04" + code + b".")


# ---- images --------------------------------------------------------------------------------------


def test_corrupted_images() -> None:
    """IDX: an array of the file's bytes, or one message."""
    whole = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(range(24))
    assert np.array_equal(_images._read_idx(whole).ravel(), np.arange(24))
    for data in corrupted(whole, np.random.default_rng(1)):
        try:
            found = _images._read_idx(data)
        except experiments.ExperimentError:
            continue
        assert found.tobytes() == data[16:]
    # 2**32 - 1 = 3 · 5 · 17 · …: a product that is the right one modulo 2**64 only
    overflow = b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 4)
    with pytest.raises(experiments.ExperimentError, match="a broken file"):
        _images._read_idx(overflow)


def test_corrupted_compressed_images(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = gzip.compress(bytes(200), mtime=0)
    for data in corrupted(whole, np.random.default_rng(2)):
        path.write_bytes(data)
        with pytest.raises(
            experiments.ExperimentError, match=r"cannot be read|not the mnist images"
        ):
            _images._verified("mnist", path, "train")


def test_compressed_images_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is unpacked than an IDX file has."""
    monkeypatch.setattr(_images, "MOST_BYTES", 1000)
    asked = []
    monkeypatch.setattr(_images.hashlib, "sha256", lambda data: asked.append(len(data)) or mock.Mock(
        hexdigest=lambda: "0" * 64))  # fmt: skip
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(experiments.ExperimentError, match="not the mnist images"):
        _images._verified("mnist", path, "train")
    assert asked == [1001]


def test_large_files_of_results_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "metrics.json").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(experiments.ExperimentError, match="wanted at most"):
        read_json(tmp_path / "metrics.json")
