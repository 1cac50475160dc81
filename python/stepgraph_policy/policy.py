"""The networks of an exported policy as a torch module, and how a file becomes one.

Shapes: N states, S state features, W bars of F features, H1 and H2 trunk widths, K atoms, A actions of all branches
together, T quantiles, M members of the ensemble.
"""

import json
import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FORMAT = "stepgraph-exported-policy-1"
# Added to the mean of squares in the Mamba-2 block's norm.
NORM_EPS = 1e-5


class Outlook(NamedTuple):
    """What a policy says of N states."""

    # Greedy action of every branch, the lowest index among equals, [N, branches].
    actions: Tensor
    # Q values, branch after branch, [N, A].
    q: Tensor
    # C51 distribution of every action over the support, [N, A, K].
    probabilities: Tensor
    # Return quantiles of every action at the policy's taus, [N, T, A]; None without an IQN head.
    quantiles: Optional[Tensor]
    # Expected value of the state by each member, [N, M]; None without an ensemble.
    ensemble: Optional[Tensor]


class Attention(nn.Module):
    """Temporal attention over the window's bars with the newest bar's token as the only query."""

    def __init__(self, window: int, features: int, width: int, heads: int):
        super().__init__()
        self.window, self.features, self.heads = window, features, heads
        self.emb = nn.Linear(features, width)
        self.pos = nn.Parameter(torch.zeros(window, width))
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, states: Tensor) -> Tensor:
        """What is added to h2, [N, H2]."""
        n = states.shape[0]
        bars = states[:, : self.window * self.features].reshape(n, self.window, self.features)
        tokens = self.emb(bars) + self.pos
        depth = tokens.shape[2] // self.heads
        query = self.q(tokens[:, -1]).reshape(n, self.heads, 1, depth)
        key = self.k(tokens).reshape(n, self.window, self.heads, depth).transpose(1, 2)
        value = self.v(tokens).reshape(n, self.window, self.heads, depth).transpose(1, 2)
        scores = query @ key.transpose(2, 3) / math.sqrt(depth)
        mixed = scores.softmax(dim=-1) @ value
        return self.gate * self.o(mixed.reshape(n, -1))


class DepthwiseTaps(nn.Module):
    """A causal convolution of every channel with its own taps, oldest bar first."""

    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, taps))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, W] to the same."""
        padded = F.pad(x, (self.weight.shape[1] - 1, 0))
        return F.conv1d(padded, self.weight[:, None], self.bias, groups=self.weight.shape[0])


class Mamba(nn.Module):
    """The Mamba-2 block (Dao and Gu 2024) over the window's bars, as the recurrence that it is defined by."""

    def __init__(self, window: int, features: int, outputs: int, width: int, heads: int, state: int, conv: int):
        super().__init__()
        self.window, self.features = window, features
        self.width, self.heads, self.state = width, heads, state
        channels = width + 2 * state
        self.emb = nn.Linear(features, width)
        # `in` is a word of the language, so it is no attribute that can be written out.
        self.add_module("in", nn.Linear(width, width + channels + heads, bias=False))
        self.conv = DepthwiseTaps(channels, conv)
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.a_log = nn.Parameter(torch.zeros(heads))
        self.skip = nn.Parameter(torch.zeros(heads))
        self.norm = nn.Parameter(torch.zeros(width))
        self.out = nn.Linear(width, outputs)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, states: Tensor) -> Tensor:
        """What is added to the argument of h1, [N, H1]."""
        n, width, heads, state = states.shape[0], self.width, self.heads, self.state
        bars = states[:, : self.window * self.features].reshape(n, self.window, self.features)
        projected = self._modules["in"](self.emb(bars))
        gates, mixed, steps = projected.split([width, width + 2 * state, heads], dim=2)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))).transpose(1, 2)
        x, b, c = mixed.split([width, state, state], dim=2)
        x = x.reshape(n, self.window, heads, width // heads)
        delta = F.softplus(steps + self.dt_bias)
        decay = torch.exp(-delta * torch.exp(self.a_log))
        scan = x.new_zeros(n, heads, width // heads, state)
        for bar in range(self.window):
            scaled = x[:, bar] * delta[:, bar, :, None]
            scan = scan * decay[:, bar, :, None, None] + scaled[..., None] * b[:, bar, None, None]
        y = (scan * c[:, -1, None, None]).sum(dim=3) + x[:, -1] * self.skip[:, None]
        y = y.reshape(n, width) * F.silu(gates[:, -1])
        y = y / torch.sqrt(y.square().mean(dim=1, keepdim=True) + NORM_EPS) * self.norm
        return self.gate * self.out(y)


class QuantileHead(nn.Module):
    """The implicit quantile head (Dabney et al. 2018; the cosine index starts at 1)."""

    def __init__(self, width: int, cosines: int, hidden: int, branches: list, slope: float):
        super().__init__()
        self.slope = slope
        self.cos = nn.Linear(cosines, width)
        self.hid = nn.Linear(width, hidden)
        self.out = nn.ModuleList(nn.Linear(hidden, n) for n in branches)

    def forward(self, features: Tensor, taus: Tensor) -> Tensor:
        """From features [N, H2] and taus [T] to quantiles [N, T, A]."""
        index = torch.arange(1, self.cos.in_features + 1, dtype=torch.float64, device=taus.device)
        # In f64: the angle of a large index would lose digits in f32.
        cosines = torch.cos(math.pi * taus.double()[:, None] * index).to(features.dtype)
        x = features[:, None] * F.relu(self.cos(cosines))
        hidden = F.leaky_relu(self.hid(x), self.slope)
        return torch.cat([layer(hidden) for layer in self.out], dim=2)


class Ensemble(nn.Module):
    """Further value heads on the features."""

    def __init__(self, width: int, hidden: int, atoms: int, members: int, slope: float):
        super().__init__()
        self.slope = slope
        self.hid = nn.ModuleList(nn.Linear(width, hidden) for _ in range(members))
        self.out = nn.ModuleList(nn.Linear(hidden, atoms) for _ in range(members))

    def forward(self, features: Tensor, support: Tensor) -> Tensor:
        """From features [N, H2] to expected values [N, M]."""
        values = []
        for hid, out in zip(self.hid, self.out):
            logits = out(F.leaky_relu(hid(features), self.slope))
            values.append(logits.softmax(dim=1) @ support)
        return torch.stack(values, dim=1)


class Policy(nn.Module):
    """The greedy policy: trunk, Mamba-2 block and attention where they are on, dueling C51 heads of every branch.

    The names of its parameters are those of `policy.safetensors`, so `load_state_dict` takes the file's tensors as they
    are. Noisy heads act by their mean. States are normalised: `source` holds the numbers of the normaliser.
    """

    def __init__(self, description: dict, quantiles: int = 0):
        """Networks of the shapes in a description, all zero; `quantiles` is T."""
        super().__init__()
        d = description
        self.description, self.source = d, {}
        self.slope, self.gated = d["leaky_slope"], d["head"] == "glu"
        width, atoms, branches = d["trunk2"], d["atoms"], d["branches"]
        wide = 2 if self.gated else 1
        self.trunk1 = nn.Linear(d["state"], d["trunk1"])
        self.trunk2 = nn.Linear(d["trunk1"], width)
        self.v1 = nn.Linear(width, wide * d["value_hidden"])
        self.v2 = nn.Linear(d["value_hidden"], atoms)
        self.a1 = nn.ModuleList(nn.Linear(width, wide * d["branch_hidden"]) for _ in branches)
        self.a2 = nn.ModuleList(nn.Linear(d["branch_hidden"], n * atoms) for n in branches)
        window = (d["window"], d["bar_features"])
        heads, mamba, iqn, members = (
            d.get(key) for key in ("attention_heads", "mamba", "iqn", "ensemble_members")
        )
        self.att = Attention(*window, width, heads) if heads else None
        self.mamba = Mamba(*window, d["trunk1"], **mamba) if mamba else None
        self.iqn = QuantileHead(width, branches=branches, slope=self.slope, **iqn) if iqn else None
        self.ens = Ensemble(width, d["value_hidden"], atoms, members, self.slope) if members else None
        self.register_buffer("support", torch.zeros(atoms))
        self.register_buffer("taus", torch.zeros(quantiles) if iqn else None)

    @classmethod
    def load(cls, path) -> "Policy":
        """Reads `policy.safetensors`.

        Raises ValueError for a file that is no exported policy, RuntimeError for tensors that do not fit it.
        """
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if "policy" not in metadata:
            raise ValueError(f"{path} is no exported policy: make one with `host export CHECKPOINT FOLDER`")
        description = json.loads(metadata["policy"])
        if description.get("format") != FORMAT:
            raise ValueError(f"{path} has format {description.get('format')!r}, expected {FORMAT!r}")
        taus = tensors.get("taus")
        policy = cls(description, 0 if taus is None else len(taus))
        policy.load_state_dict(tensors, strict=True)
        policy.source = json.loads(metadata["source"])
        return policy.eval()

    def features(self, states: Tensor) -> Tensor:
        """h2', what every head reads, [N, H2]."""
        h1 = self.trunk1(states)
        if self.mamba is not None:
            h1 = h1 + self.mamba(states)
        h2 = F.leaky_relu(self.trunk2(F.leaky_relu(h1, self.slope)), self.slope)
        return h2 if self.att is None else h2 + self.att(states)

    def _hidden(self, x: Tensor) -> Tensor:
        return F.glu(x, dim=1) if self.gated else F.leaky_relu(x, self.slope)

    def forward(self, states: Tensor) -> Outlook:
        """From normalised states [N, S] to what the policy says of them."""
        atoms = len(self.support)
        features = self.features(states)
        value = self.v2(self._hidden(self.v1(features)))[:, None]
        actions, probabilities = [], []
        for hidden, output in zip(self.a1, self.a2):
            advantage = output(self._hidden(hidden(features))).reshape(len(states), -1, atoms)
            logits = value + advantage - advantage.mean(dim=1, keepdim=True)
            p = logits.softmax(dim=2)
            actions.append((p @ self.support).argmax(dim=1))
            probabilities.append(p)
        p = torch.cat(probabilities, dim=1)
        return Outlook(
            actions=torch.stack(actions, dim=1),
            q=p @ self.support,
            probabilities=p,
            quantiles=None if self.iqn is None else self.iqn(features, self.taus),
            ensemble=None if self.ens is None else self.ens(features, self.support),
        )
