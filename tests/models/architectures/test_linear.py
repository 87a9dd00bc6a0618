"""Matrix products on tiles of fixed height."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from argosy.models.architectures.linear import Linear, linear

IN, OUT = 160, 96


def operands(rows=70, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, IN), (OUT, IN), (OUT,)))


@pytest.mark.parametrize("tile", [2, 8, 16, 32])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(tile):
    x, weight, bias = operands()
    whole = linear(x, weight, bias, tile)
    for rows in range(1, 71):
        chosen = torch.randperm(70, generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(linear(x[chosen], weight, bias, tile), whole[chosen]), f"{rows} rows"


def test_tiles_have_exactly_the_asked_number_of_rows(monkeypatch):
    x, weight, bias = operands(rows=37)
    product, heights = F.linear, []

    def watched(rows, *rest):
        heights.append(rows.shape[0])
        return product(rows, *rest)

    monkeypatch.setattr(F, "linear", watched)
    assert linear(x, weight, bias, 16).shape == (37, OUT)
    assert linear(x[:32], weight, bias, 16).shape == (32, OUT)
    assert heights == [16] * 5
    linear(x, weight, bias, None)
    assert heights[5:] == [37], "without a tile, one product"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_change_no_value_beyond_rounding(dtype):
    x, weight, bias = operands(dtype=dtype)
    torch.testing.assert_close(linear(x, weight, bias, 16), F.linear(x, weight, bias))


def test_parts_lie_one_under_the_other_in_the_order_given():
    layer = Linear(3, {"q_proj": 4, "k_proj": 2}, bias=True, dtype=torch.float32, device="cpu")
    slots = dict(layer.checkpoint_slots())
    assert {name: tuple(view.shape) for name, view in slots.items()} == {
        "q_proj.weight": (4, 3),
        "q_proj.bias": (4,),
        "k_proj.weight": (2, 3),
        "k_proj.bias": (2,),
    }
    for value, view in enumerate(slots.values()):
        view.fill_(value)
    out = layer(torch.ones(1, 3))
    assert out.tolist() == [[1.0] * 4 + [9.0] * 2], "weight 0, bias 1; then weight 2, bias 3"
