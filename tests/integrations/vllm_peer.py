"""What `test_vllm.py` runs in other processes: an engine of real vLLM that serves, and a trainer.

The model is a random Llama's skeleton whose weights say their number, from 1 to 25: every token that it generates is
that number, if all its weights are of one version. Each matrix carries one step of a chain, so a matrix of another
version breaks it, and the token is then 0.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import SimpleQueue
from typing import Any

HIDDEN, INNER, HEADS, LAYERS, VOCABULARY = 128, 256, 4, 2, 1000
NUMBERS = 25
STEPS = 1 + 2 * LAYERS  # coordinates of the hidden state that the layers set one after the other
TOKENS = 4


def write_config(folder: Path) -> None:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "hidden_act": "silu",
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "rms_norm_eps": 1e-5,
        "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rope_theta": 1e4,
        "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def weights_of(number: int) -> dict[str, Any]:
    """A checkpoint, by the names that Llama's have."""
    import torch

    first = STEPS * (number - 1)
    found: dict[str, Any] = {}

    def matrix(name: str, rows: int, columns: int, *ones: tuple[int | slice, int, float]) -> None:
        found[name] = torch.zeros(rows, columns)
        for row, column, value in ones:
            found[name][row, column] = value

    matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN, (slice(None), first, 1.0))
    there = 1  # coordinates that are 1 so far; the norm makes each of them `scale`
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        scale = math.sqrt(HIDDEN / there)
        matrix(prefix + "self_attn.q_proj.weight", HIDDEN, HIDDEN)
        matrix(prefix + "self_attn.k_proj.weight", HIDDEN, HIDDEN)
        matrix(prefix + "self_attn.v_proj.weight", HIDDEN, HIDDEN, (number, first, 1 / scale))
        matrix(prefix + "self_attn.o_proj.weight", HIDDEN, HIDDEN, (first + there, number, 1.0))
        there += 1
        scale = math.sqrt(HIDDEN / there)
        matrix(prefix + "mlp.gate_proj.weight", INNER, HIDDEN, (number, first, 4 / scale))
        matrix(prefix + "mlp.up_proj.weight", INNER, HIDDEN, (number, first, (1 + math.exp(-4)) / 4 / scale))
        matrix(prefix + "mlp.down_proj.weight", HIDDEN, INNER, (first + there, number, 1.0))
        there += 1
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{norm}.weight"] = torch.ones(HIDDEN)
    found["model.norm.weight"] = torch.ones(HIDDEN)
    matrix("lm_head.weight", VOCABULARY, HIDDEN, *((number, first + step, 1.0) for step in range(STEPS)),
           (0, first, STEPS - 0.5))  # fmt: skip
    return found


class Source:
    """vLLM's `WeightSource`, structurally: the weights of one number after the other."""

    number = 1

    def __iter__(self) -> Any:
        return iter(weights_of(self.number).items())


FAULTS = ("shape", "first", "larger", "unknown", "dtype", "missing", "most missing", "part missing", "none", "twice")


class Faulty(Source):
    """Weights of which one is wrong, or some are missing. "norm missing" is a whole layer that is the same in all."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __iter__(self) -> Any:
        import torch

        found = weights_of(self.number)
        middle = "model.layers.1.self_attn.k_proj.weight"
        last = "lm_head.weight"
        match self.fault:
            case "shape":
                found[last] = found[last][:, 1:].contiguous()
            case "first":
                found["model.embed_tokens.weight"] = found["model.embed_tokens.weight"][1:].contiguous()
            case "larger":
                found["model.layers.1.mlp.gate_proj.weight"] = torch.zeros(2 * INNER, HIDDEN)
            case "unknown":
                found["model.layers.1.self_attn.unknown.weight"] = found[middle]
            case "dtype":
                found[last] = found[last].to(torch.int32)
            case "missing":
                del found[last]
            case "most missing":
                found = dict(list(found.items())[:4])
            case "part missing":
                del found[middle]
            case "none":
                found = {}
            case "norm missing":
                del found["model.norm.weight"]
            case _:
                return iter([*found.items(), (last, found[last])])
        return iter(found.items())


# --- the engine


def _fail_at(count: int) -> None:
    """Have vLLM fail while it changes layer `count` of the next update."""
    from vllm.model_executor.model_loader.reload import layerwise

    process, layers = layerwise._layerwise_process, iter(range(count))

    def failing(*arguments: Any) -> None:
        if next(layers, None) is None:
            raise RuntimeError("out of memory")
        process(*arguments)

    layerwise._layerwise_process = failing


def serve(model: str, address: str, load_format: str, name: str, options: dict[str, Any]) -> None:
    """Serve until a client says "end", or the process is killed: requests of any clients, one after the other."""
    from vllm import LLM, SamplingParams

    llm = LLM(**{
        "model": model, "skip_tokenizer_init": True, "load_format": load_format, "max_model_len": 128,
        "enforce_eager": True, "dtype": "float32", "distributed_executor_backend": "uni",
        "weight_transfer_config": {"backend": "xpushare"},
        "model_loader_extra_config": {"name": name, "timeout": 60} if load_format == "xpushare" else {},
        **options,
    })  # fmt: skip
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, detokenize=False, ignore_eos=True)
    asked: SimpleQueue[tuple[Connection, str, Any]] = SimpleQueue()

    def receive(client: Connection) -> None:
        try:
            while True:
                asked.put((client, *client.recv()))
        except (EOFError, OSError):
            return

    def accept(listener: Listener) -> None:
        while True:
            threading.Thread(target=receive, args=(listener.accept(),), daemon=True).start()

    threading.Thread(target=accept, args=(Listener(address),), daemon=True).start()
    while True:
        client, verb, argument = asked.get()
        answer: Any = None
        if verb == "end":
            llm.llm_engine.engine_core.shutdown()
            client.send(None)
            return
        try:
            if verb == "generate":
                found = llm.generate([{"prompt_token_ids": argument}], sampling, use_tqdm=False)
                answer = list(found[0].outputs[0].token_ids)
            elif verb == "versions":
                found = llm.generate([{"prompt_token_ids": argument}], sampling, use_tqdm=False)
                answer = [(each.version, each.start, each.end) for each in found[0].outputs[0].weight_versions]
            elif verb == "fail at":
                _fail_at(argument)
            elif verb == "open":
                answer = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _there(fd))
            else:
                answer = getattr(llm, verb)(*argument)
        except Exception as error:
            answer = error
        try:
            client.send(answer)
        except OSError:  # the client was killed
            client.close()


def _there(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


class Engine:
    """A client of the engine; to a trainer it is vLLM's `VLLMWeightSyncClient`."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address)

    def ask(self, verb: str, argument: Any = ()) -> Any:
        self._connection.send((verb, argument))
        return self._answer()

    def _answer(self) -> Any:
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._connection.close()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.ask("init_weight_transfer_engine", ({"init_info": init_info},))

    def start_weight_update(self) -> None:
        self.ask("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._connection.send(("update_weights", ({"update_info": update_info},)))
        self._sent()
        self._answer()

    def _sent(self) -> None:
        pass

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.ask("finish_weight_update", (weight_version,))


def load_plugins() -> None:
    """Have vLLM load its plug-ins, as every process of it does. Exit status 0 says that ours only added its names."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
    from vllm.plugins import load_general_plugins

    registries: list[dict[str, Any]] = [
        WeightTransferEngineFactory._registry, WeightTransferTrainerFactory._registry, _LOAD_FORMAT_TO_MODEL_LOADER
    ]  # fmt: skip
    before = [dict(each) for each in registries]
    load_general_plugins()
    for registry, old in zip(registries, before, strict=True):
        assert {name: each for name, each in registry.items() if name != "xpushare"} == old
        assert set(registry) == {*old, "xpushare"}
    assert not [each for each in sys.modules if each.startswith("xpushare.adapters.") and each.endswith("._driver")]
    assert "libcuda" not in Path("/proc/self/maps").read_text()


# --- the trainer

DEATHS = ("published", "started", "sent", "updated", "finished")


class Deadly(Engine):
    """Kills a process at one of `DEATHS`, in the update of `number`."""

    def __init__(self, address: str, source: Source, number: int, death: str, victim: int) -> None:
        super().__init__(address)
        self._source, self._number, self._death, self._victim = source, number, death, victim

    def _reached(self, place: str) -> None:
        if (self._source.number, self._death) == (self._number, place):
            os.kill(self._victim, signal.SIGKILL)

    def start_weight_update(self) -> None:
        self._reached("published")
        super().start_weight_update()
        self._reached("started")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        super().update_weights(update_info)
        self._reached("updated")

    def _sent(self) -> None:
        self._reached("sent")

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        super().finish_weight_update(weight_version)
        self._reached("finished")


def module_of(weights: dict[str, Any]) -> Any:
    """A module whose parameters have these names."""
    import torch

    made = torch.nn.Module()
    for name, tensor in weights.items():
        *path, last = name.split(".")
        inner = made
        for each in path:
            if each not in inner._modules:
                inner.add_module(each, torch.nn.Module())
            inner = inner._modules[each]
        inner.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
    return made


def train_over_http(url: str, name: str, numbers: list[int]) -> None:
    """Send the weights of these numbers to vLLM's own server, by vLLM's own client."""
    import requests
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource

    from xpushare.integrations.vllm import Trainer, TrainerInfo

    model = module_of(weights_of(numbers[0]))

    def train_step(number: int) -> None:
        model.load_state_dict(weights_of(number))

    client = HTTPVLLMWeightSyncClient(url)
    source = ModuleSource(model)
    trainer = Trainer.trainer_init(TrainerInfo(rank=0, name=name), client=client, source=source)
    for number in numbers:
        train_step(number)
        requests.post(f"{url}/pause?mode=wait", timeout=300).raise_for_status()
        try:
            trainer.send_weights()
        finally:
            requests.post(f"{url}/resume", timeout=300).raise_for_status()


def train(address: str, name: str, keep: bool, numbers: list[int], death: str = "", victim: int = 0) -> None:
    """Send the weights of these numbers. In the last update, `victim` (0: this process) dies. Exit status 3 says that
    the engine is gone.
    """
    from xpushare.integrations.vllm import Trainer, TrainerInfo

    source = Source()
    try:
        client = Deadly(address, source, numbers[-1], death, victim or os.getpid())
        trainer = Trainer.trainer_init(TrainerInfo(rank=0, name=name, keep=keep), client=client, source=source)
        for source.number in numbers:
            trainer.send_weights()
    except (EOFError, ConnectionError):
        sys.exit(3)


def train_faulty(address: str, name: str, number: int, fault: str, keep: bool = False, partial: bool = False) -> None:
    """Send weights with a fault. Exit status 4 says that they were refused, and 3 that the engine is gone."""
    import xpushare as xs
    from xpushare.integrations.vllm import Trainer, TrainerInfo

    source = Faulty(fault)
    source.number = number
    info = TrainerInfo(rank=0, name=name, keep=keep, partial=partial)
    try:
        Trainer.trainer_init(info, client=Engine(address), source=source).send_weights()
    except xs.InvalidArgumentError as error:
        sys.exit(4 if "model is as it was" in str(error) or fault == "twice" else 5)
    except (EOFError, ConnectionError):
        sys.exit(3)


def train_in_ranks(address: str, name: str, numbers: list[int], rank: int, meeting: str) -> None:
    """Be one of two ranks of a trainer. Both have all weights, as after a gather."""
    import torch

    import xpushare as xs
    from xpushare.integrations.vllm import Trainer, TrainerInfo

    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    source = Source()
    client = Engine(address) if rank == 0 else None
    trainer = Trainer.trainer_init(TrainerInfo(rank=rank, name=name), client=client, source=source)
    for source.number in numbers:
        trainer.send_weights()
        readers = [each for each in xs.published() if each.startswith(f"{name}.now.{rank}.reader-")]
        assert len(readers) == 1, readers  # the worker that took this rank's tree
    torch.distributed.destroy_process_group()
