import json

import pytest

from onnxq.targets import list_targets


def test_lists_all(onnxq):
    code, out, err = onnxq("targets")
    assert (code, err) == (0, "")
    assert all(name in out for name in list_targets()) and "\x1b" not in out


def test_list_as_json(onnxq):
    code, out, _ = onnxq("targets", "--format", "json")
    assert code == 0 and [t["name"] for t in json.loads(out)] == list_targets()


def test_one_as_text_and_json(onnxq):
    _, out, _ = onnxq("targets", "ort-cpu")
    assert "21 to 27" in out and "Sigmoid" in out and "mode nearest" in out
    _, out, _ = onnxq("targets", "ort-cpu", "--format", "json")
    data = json.loads(out)
    assert data["format"] == "onnxq-target-1" and data["integer-ops"]["Conv"]["kind"] == "matmul-like"
    assert data["weights"]["default"] == "int8"


def test_own_file(onnxq, tmp_path):
    from importlib import resources

    path = tmp_path / "mine.yaml"
    path.write_text((resources.files("onnxq.targets") / "onnx.yaml").read_text().replace("name: onnx", "name: mine"))
    code, out, _ = onnxq("targets", str(path))
    assert code == 0 and out.startswith("mine: ")


@pytest.mark.parametrize("name", ["ortcpu", "none.yaml"])
def test_unknown(onnxq, name):
    code, out, err = onnxq("targets", name)
    assert (code, out) == (2, "") and err.startswith("error: ") and name in err
