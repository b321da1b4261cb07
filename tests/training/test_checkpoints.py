import numpy as np
import pytest

from onnxq.errors import OptionError
from onnxq.training.checkpoints import FILE, Checkpoint, read, write

IDENTITY = {"model": "ab", "data": "cd", "lr": 0.1, "freeze": ("x",)}


@pytest.fixture
def checkpoint():
    rng = np.random.default_rng(0)
    one = {"a/b:c": rng.normal(size=(2, 3)).astype(np.float32), "file": np.float32(rng.normal()).reshape(())}
    return Checkpoint(one, {"file": np.zeros(1, np.float32)}, {"mean": one, "square": one}, {"step": 7, "epochs": []})


def test_comes_back_bit_by_bit(checkpoint, tmp_path):
    folder = tmp_path / "new" / "folder"
    write(folder, checkpoint, IDENTITY)
    found = read(folder, IDENTITY)
    assert found.progress == checkpoint.progress
    pairs = [(found.parameters, checkpoint.parameters), (found.best, checkpoint.best)]
    pairs += [(found.state[k], checkpoint.state[k]) for k in ("mean", "square")]
    for there, here in pairs:
        assert there.keys() == here.keys()
        for name in here:
            assert there[name].dtype == here[name].dtype and there[name].tobytes() == here[name].tobytes()
    assert [p.name for p in folder.iterdir()] == [FILE]


def test_none_is_none(tmp_path):
    assert read(tmp_path, IDENTITY) is None
    assert read(tmp_path / "nowhere", IDENTITY) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "xy"}, "the model is another"),
        ({"data": "xy"}, "the data is another"),
        ({"lr": 0.2}, "lr 0.1 there, 0.2 now"),
        ({"freeze": ()}, r"freeze \['x'\] there, \[\] now"),
    ],
)
def test_another_training_is_refused(checkpoint, tmp_path, change, text):
    write(tmp_path, checkpoint, IDENTITY)
    with pytest.raises(OptionError, match=f"{text}.*--no-resume"):
        read(tmp_path, {**IDENTITY, **change})


def test_a_failure_leaves_the_old_one(checkpoint, tmp_path, monkeypatch):
    write(tmp_path, checkpoint, IDENTITY)
    before = (tmp_path / FILE).read_bytes()

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OptionError, match=r"cannot write.*No space left"):
        write(tmp_path, checkpoint, IDENTITY)
    assert (tmp_path / FILE).read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"text"])
def test_damaged(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(OptionError, match=r"is damaged.*--no-resume"):
        read(tmp_path, IDENTITY)


def test_other_npz(tmp_path):
    np.savez(tmp_path / FILE, x=np.zeros(2))
    with pytest.raises(OptionError, match="is damaged"):
        read(tmp_path, IDENTITY)


def test_truncated(checkpoint, tmp_path):
    write(tmp_path, checkpoint, IDENTITY)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OptionError, match="is damaged"):
        read(tmp_path, IDENTITY)
