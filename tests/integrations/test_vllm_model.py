"""How weights are checked against a model of vLLM before the model changes, as far as that needs no vLLM.
`test_vllm.py` runs the rest against the real package.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import xpushare as xs

torch: Any = pytest.importorskip("torch")

from xpushare.integrations import _vllm_model as checks  # noqa: E402
from xpushare.integrations._written import Written, lacks_part, watching  # noqa: E402


def _written(parameter: Any, *writes: tuple[Any, Any]) -> Written:
    """Record copies to parts of a parameter without memory. Each part is an index, and the weight to copy there."""
    written = Written()
    written.watch([parameter])
    weights = [(f"weight {i}", weight) for i, (_, weight) in enumerate(writes)]
    with written:
        for (index, _), (_, weight) in zip(writes, written.each(weights), strict=True):
            target = parameter.data[index]
            target.copy_(weight[: len(target)])
    return written


def _lacks(layer: Any, parameter: Any, *writes: tuple[Any, Any]) -> bool:
    return lacks_part(layer, parameter, _written(parameter, *writes).of(parameter))


def test_a_parameter_of_several_weights_lacks_one() -> None:
    layer = SimpleNamespace(output_partition_sizes=[8, 2, 2])
    parameter = torch.nn.Parameter(torch.empty(12, 4, device="meta"))
    q, k, v = slice(0, 8), slice(8, 10), slice(10, 12)
    parts = [(q, torch.ones(8, 4)), (k, torch.ones(2, 4)), (v, torch.ones(2, 4))]
    assert not _lacks(layer, parameter, *parts)
    assert not _lacks(layer, parameter, (slice(None), torch.ones(12, 4)))
    for missing in range(3):
        assert _lacks(layer, parameter, *(part for i, part in enumerate(parts) if i != missing))
    assert _lacks(layer, parameter, parts[0], parts[1], parts[1])  # one weight twice


def test_experts() -> None:
    experts = torch.nn.Parameter(torch.empty(3, 8, 5, device="meta"))
    halves = [((each, half), torch.ones(4, 5)) for each in range(3) for half in (slice(0, 4), slice(4, 8))]
    layer = SimpleNamespace()
    assert not _lacks(layer, experts, *halves)
    assert not _lacks(layer, experts, (slice(None), torch.ones(3, 8, 5)))
    for missing in range(6):
        assert _lacks(layer, experts, *(half for i, half in enumerate(halves) if i != missing))
    padded = [((each, half), torch.ones(3, 5)) for each in range(3) for half in (slice(0, 3), slice(4, 7))]
    assert not _lacks(layer, experts, *padded)


def test_padding_is_not_missing() -> None:
    parameter = torch.nn.Parameter(torch.empty(64, 4, device="meta"))
    assert not _lacks(SimpleNamespace(output_partition_sizes=[64]), parameter, (slice(0, 50), torch.ones(50, 4)))
    assert _lacks(SimpleNamespace(output_partition_sizes=[64]), parameter, (slice(0, 30), torch.ones(30, 4)))


def test_weights_of_which_the_ranks_take_only_a_part() -> None:
    first, second = torch.empty(512, 4, device="meta"), torch.empty(512, 4, device="meta")
    weight = torch.ones(1000, 4)
    of_ranks = [
        _written(first, (slice(0, 512), weight)).in_part(),
        _written(second, (slice(0, 488), weight)).in_part(),
    ]  # fmt: skip
    assert of_ranks == [{"weight 0": (2048, 4000)}, {"weight 0": (1952, 4000)}]
    checks.expect_all_taken(of_ranks)
    with pytest.raises(xs.InvalidArgumentError, match=r"larger than the model.s.*weight 0"):
        checks.expect_all_taken(of_ranks[:1])
    assert _written(first, (slice(0, 512), weight[:512])).in_part() == {}


ALLOWED = [
    ("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "float8_e8m0fnu"), ("float8_e5m2", "float8_e5m2"),
    ("int32", "int32"), ("uint8", "int8"),
]  # fmt: skip
REFUSED = [
    ("bfloat16", "int32"), ("float8_e4m3fn", "bfloat16"), ("bfloat16", "float8_e4m3fn"), ("int32", "float32"),
    ("int32", "int64"), ("float32", "complex64"), ("float32", "bool"),
]  # fmt: skip


@pytest.mark.parametrize(("to", "source"), ALLOWED + REFUSED)
def test_dtypes(to: str, source: str) -> None:
    parameter = torch.empty(4, dtype=getattr(torch, to), device="meta")
    write = (slice(None), torch.empty(4, dtype=getattr(torch, source)))
    if (to, source) in ALLOWED:
        _written(parameter, write)
        return
    with pytest.raises(xs.InvalidArgumentError, match=f"torch.{to}, and the weight is torch.{source}"):
        _written(parameter, write)


class _Staged:
    changed = False
    undone = 0

    def undo(self) -> None:
        self.undone += 1


def test_a_failure_restores_or_ends_the_engine() -> None:
    staged: list[Any] = [_Staged(), _Staged()]
    with pytest.raises(RuntimeError, match="out of memory"), checks.changing(*staged):
        raise RuntimeError("out of memory")
    assert [each.undone for each in staged] == [1, 1]
    staged[1].changed = True
    with pytest.raises(SystemExit, match=r"mixture of two versions.*out of memory"), checks.changing(*staged):
        raise RuntimeError("out of memory")
    assert [each.undone for each in staged] == [1, 1]
    with checks.changing(*staged) as first:
        assert first is staged[0]


def test_a_model_that_is_loaded_in_part() -> None:
    model = torch.nn.Linear(4, 12)
    model.output_partition_sizes = [8, 2, 2]
    with torch.no_grad():
        with watching(model):
            model.weight[:12].copy_(torch.ones(12, 4))
        with pytest.raises(xs.InvalidArgumentError, match=r"a part of \.weight"), watching(model):
            model.weight[:8].copy_(torch.ones(8, 4))
