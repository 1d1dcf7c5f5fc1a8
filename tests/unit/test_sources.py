"""Our own sources: nothing in them evaluates text, goes through a shell or trusts a pickle."""

import ast

import pytest

from tests.conftest import ROOT

SOURCES = sorted(
    path for part in ("onmt_varattn", "tools", "benchmarks") for path in (ROOT / part).rglob("*.py")
)
FORBIDDEN = {
    "eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "shelve.open",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load",
}  # fmt: skip


def unsafe_calls(source):
    """The calls in a source that could run what it is given."""
    return [
        f"{ast.unparse(node)} (line {node.lineno})"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and is_unsafe(node)
    ]


def is_unsafe(call):
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return (
        name in FORBIDDEN
        or given.get("shell", "False") != "False"
        or (name.rsplit(".", 1)[-1] == "load" and name.startswith("torch"))
        or (name.rsplit(".", 1)[-1] in ("extract", "extractall") and given.get("filter") != "'data'")
    )


def test_our_sources_have_no_unsafe_calls():
    assert len(SOURCES) > 60
    found = {str(path): unsafe_calls(path.read_text("utf-8")) for path in SOURCES}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    [
        "eval(text)",
        "exec(text)",
        "os.system(words)",
        "subprocess.run(words, shell=True)",
        "subprocess.run(words, shell=flag)",
        "pickle.load(file)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=True)",
        "tar.extractall(path)",
        "tar.extractall(path, filter='fully_trusted')",
        "yaml.load(file)",
    ],
)
def test_an_unsafe_call_is_found(source):
    assert unsafe_calls(f"def f():\n    return {source}")


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "ast.literal_eval(text)",
        "subprocess.run(words, shell=False)",
        "tar.extractall(path, filter='data')",
        "yaml.safe_load(file)",
        "json.load(file)",
    ],
)
def test_a_safe_call_is_not(source):
    assert unsafe_calls(source) == []
