"""What only a GPU can show of the kernels: graphs, groups of programs, sizes that no CPU would hold."""

import pytest
import torch

import gence
from tests.losses.test_kernels_cases import check, check_rows_held_by_a_group, make, run

pytestmark = pytest.mark.gpu


def test_chosen_by_itself():
    from gence import _triton as launch

    logits, target = make("index", 64, 7, torch.float32, seed=3)
    before = len(launch._compiled)
    run("auto", logits, target, ignore_index=-7)
    assert len(launch._compiled) > before


@pytest.mark.parametrize(("n", "K"), [(301, 4104), (5, 520), (2000, 1032)])
def test_programs_of_a_group_wait_for_one_another(n, K):
    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("ignore", "two_hot"):
            check_rows_held_by_a_group(kind, dtype, n, K)


@pytest.mark.parametrize(("n", "K"), [(37, 21841), (40, 50257), (24, 70001), (24, 131072)])
@pytest.mark.parametrize("kind", ["index", "two_hot", "probs"])
def test_long_rows_of_any_alignment_are_exact_and_repeat(n, K, kind):
    for dtype in (torch.float32, torch.bfloat16):
        logits, target = make(kind, n, K, dtype)
        check(logits, target, tolerance=1e-5)
        torch.use_deterministic_algorithms(True)
        try:
            first, second = (run("triton", logits, target) for _ in range(2))
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(map(torch.equal, first, second))


def test_a_class_of_more_rows_than_float32_counts():
    n = 1 << 25
    logits = torch.tensor([[1.0, 0.0]], device="cuda").expand(n, 2).contiguous()
    target = torch.zeros(n, dtype=torch.long, device="cuda")
    loss, grad = run("triton", logits, target, reduction="sum")
    torch.testing.assert_close(loss / n, torch.tensor(n, device="cuda").log(), rtol=1e-4, atol=0)
    assert float(grad.abs().max()) < 1e-3


@pytest.mark.parametrize(("n", "K"), [(34000, 65536), (17000, 131072)])
def test_more_than_two_to_the_31_logits(n, K):
    logits = torch.empty(n, K, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.randint(0, K, (n,), device="cuda")
    loss, grad = run("triton", logits, target)
    sums = sum(part.float().softmax(1).sum(0) for part in logits.split(1000))
    costs = [
        -(part.float().log_softmax(1).gather(1, y[:, None]).squeeze(1) - sums[y].log())
        for part, y in zip(logits.split(1000), target.split(1000), strict=True)
    ]
    torch.testing.assert_close(loss.float(), torch.cat(costs).mean(), rtol=5e-3, atol=0)
    pull = torch.bincount(target, minlength=K) / sums
    p = logits[-8:].float().softmax(1)
    expected = p * (1 + pull - (p @ pull)[:, None])
    expected[torch.arange(8), target[-8:]] -= 1
    torch.testing.assert_close(grad[-8:].float() * n, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("n", "K"), [(100, 10), (512, 1000), (64, 40000), (64, 70000)])
def test_captured_in_a_graph(n, K):
    logits, target = make("index", n, K, torch.float32)
    z = logits.clone().requires_grad_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(gence.gen_cross_entropy(z, target), z)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = gence.gen_cross_entropy(z, target)
        (grad,) = torch.autograd.grad(loss, z)
    other, _ = make("index", n, K, torch.float32, seed=5)
    with torch.no_grad():
        z.copy_(other)
    graph.replay()
    expected_loss, expected = run("torch", other, target)
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)


def test_autocast_gives_float32():
    logits, target = make("index", 32, 9, torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert gence.gen_cross_entropy(logits, target).dtype == torch.float32
    assert gence.gen_cross_entropy(logits, target).dtype == torch.bfloat16


def test_float64_takes_the_plain_path():
    logits, target = make("index", 32, 9, torch.float64)
    assert run("auto", logits, target)[0].dtype == torch.float64
    with pytest.raises(RuntimeError, match="float64"):
        run("triton", logits, target)
