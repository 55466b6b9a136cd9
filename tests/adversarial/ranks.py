"""Ranks that stay for all cases of an attack, because importing torch takes a thousand times longer than a case."""

from __future__ import annotations

import atexit
import multiprocessing
import pickle
import socket
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

import gence
from gence import BatchMarginal, MarginalMonitor

MOST_RANKS = 3


def own(gradient: Tensor | None, values: Tensor) -> Tensor:
    return torch.zeros_like(values) if gradient is None else gradient


def rank_main(rank: int, port: int, pipe: Connection) -> None:
    """A rank: answers each question with what its part gives, until the parent hangs up."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=MOST_RANKS
    )
    groups = {2: torch.distributed.new_group([0, 1]), 3: "world"}
    while True:
        try:
            question = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            if question["what"] == "monitor":
                answer: Any = _monitored(question, groups)
            else:
                answer = _ranked(question, groups)
        except Exception as error:
            answer = error
        pipe.send_bytes(pickle.dumps(answer))


def _ranked(question: dict[str, Any], groups: dict[int, Any]) -> dict[str, Any]:
    group = groups[question["ranks"]]
    losses, grads = [], []
    pieces = [(z.requires_grad_(), target, context) for z, target, context in question["pieces"]]
    for _, _, context in pieces:
        if context is not None:
            context.requires_grad_(question["context_grads"])
    marginal = None
    if question["what"] == "collected":
        marginal = BatchMarginal(**question["terms"], process_group=group)
        for piece in pieces:
            marginal.update(*piece)
        marginal.reduce()
    for z, target, context in pieces:
        loss = gence.gen_cross_entropy(
            z, target, context=context, process_group=group, marginal=marginal, **question["options"]
        )
        losses.append(loss.detach())
        wanted = [v for v in (z, context) if v is not None and v.requires_grad]
        found = torch.autograd.grad(loss.sum(), wanted, allow_unused=True)
        grads.append([own(g, v) for g, v in zip(found, wanted, strict=True)])
    return {"losses": losses, "grads": grads}


def _monitored(question: dict[str, Any], groups: dict[int, Any]) -> dict[str, Any]:
    monitor = MarginalMonitor(question["prior"], threshold=1e9)
    for z, target in question["batches"]:
        monitor.update(z, target)
    monitor.reduce(groups[question["ranks"]])
    return {"kl": monitor.check(warn=False)}


_ranks: list[Connection] = []


def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask ranks 0, 1, ... their question each, and return the answers."""
    if not _ranks:
        _start()
    for pipe, question in zip(_ranks, questions, strict=False):
        pipe.send_bytes(pickle.dumps(question))  # by value: torch would share memory, and open a file for each
    answers = []
    for pipe in _ranks[: len(questions)]:
        if not pipe.poll(60):
            _stop()
            raise AssertionError("the ranks wait for each other")
        answers.append(pickle.loads(pipe.recv_bytes()))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


_processes: list[Any] = []


def _start() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gence", "torch.distributed", "tests.adversarial.ranks"])
    for rank in range(MOST_RANKS):
        here, there = context.Pipe()
        process = context.Process(target=rank_main, args=(rank, port, there), daemon=True)
        process.start()
        there.close()
        _ranks.append(here)
        _processes.append(process)
    atexit.register(_stop)


def _stop() -> None:
    for pipe in _ranks:
        pipe.close()
    for process in _processes:
        process.join(5)
        if process.is_alive():
            process.terminate()
    _ranks.clear()
    _processes.clear()
