"""The forward pass of lerobot's ACT network without its latent, and a critic over a copy of its encoder.

The modules and weights are lerobot's own; only the order of work differs, and the results are equal up to rounding:
batch-first tensors, fused attention without attention weights, all cameras in one backbone call, and what does not
depend on the observation (the first decoder layer's self-attention over zeros, its queries) computed once per batch.
Dropout is never applied.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

from burnish.nn.mlp import make_mlp

FEW_TOKENS = 4
"""Up to so many keys, broadcast products are about twice as fast on CPU as batched matrix products."""


class Affine(nn.Module):
    """normalised = (raw - mean) / scale + shift, the form of every one of lerobot's normalisation modes."""

    mean: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, mean: Any, scale: Any, shift: float = 0.0) -> None:
        """Take mean and scale (D,)."""
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32).clone())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32).clone())
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32))

    def forward(self, raw: torch.Tensor) -> torch.Tensor:
        """Normalise (..., D)."""
        return (raw - self.mean) / self.scale + self.shift

    def inverse(self, normalised: torch.Tensor) -> torch.Tensor:
        """Return raw values of (..., D)."""
        return (normalised - self.shift) * self.scale + self.mean


ENCODER_PARTS = (
    "encoder",
    "encoder_robot_state_input_proj",
    "encoder_env_state_input_proj",
    "encoder_latent_input_proj",
    "encoder_1d_feature_pos_embed",
    "encoder_img_feat_input_proj",
)
"""Attributes of lerobot's ``ACT`` that turn an observation into memory tokens, the backbone aside."""


class EncoderCopy(nn.Module):
    """An own copy of the encoder of lerobot's ``ACT``, under the same names and equal at the start."""

    def __init__(self, act: Any, *, with_backbone: bool) -> None:
        """Copy the encoder's parts, and the backbone where it is not shared."""
        super().__init__()
        for name in (*ENCODER_PARTS, *(("backbone",) if with_backbone else ())):
            if hasattr(act, name):
                setattr(self, name, copy.deepcopy(getattr(act, name)))


def encode(
    parts: Any, vectors: Sequence[torch.Tensor], maps: torch.Tensor | None, map_positions: torch.Tensor
) -> torch.Tensor:
    """Return memory tokens (B, S, D): latent, state, environment state, then the points of the camera maps.

    Args:
        parts: lerobot's ``ACT`` or an :class:`EncoderCopy`.
        vectors: Normalised state (B, D'), then the environment state where the network has one.
        maps: (B, P, F) backbone features of all cameras' map points, or None without cameras.
        map_positions: (P, D) positions of those points.
    """
    tokens = [parts.encoder_latent_input_proj.bias.expand(len(vectors[0]), -1)]
    tokens.append(parts.encoder_robot_state_input_proj(vectors[0]))
    if len(vectors) > 1:
        tokens.append(parts.encoder_env_state_input_proj(vectors[1]))
    x = torch.stack(tokens, 1)
    if maps is not None:
        project = parts.encoder_img_feat_input_proj
        x = torch.cat((x, linear(maps, project.weight[:, :, 0, 0], project.bias)), 1)
    positions = memory_positions(parts, map_positions)
    for layer in parts.encoder.layers:
        x = _encoder_layer(layer, x, positions)
    return parts.encoder.norm(x)  # type: ignore[no-any-return]


def memory_positions(parts: Any, map_positions: torch.Tensor) -> torch.Tensor:
    """Return the positions (S, D) of all memory tokens."""
    return torch.cat((parts.encoder_1d_feature_pos_embed.weight, map_positions))


def decode(act: Any, memory: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the action chunk (B, K, A), normalised, from memory tokens (B, S, D) and their positions (S, D)."""
    queries = act.decoder_pos_embed.weight
    keys = memory + positions
    x = queries.new_zeros(1, *queries.shape)
    for i, layer in enumerate(act.decoder.layers):
        x = _decoder_layer(layer, x, memory, keys, queries, constant=i == 0)
    x = act.decoder.norm(x) if act.decoder.norm is not None else x
    return act.action_head(x)  # type: ignore[no-any-return]


def backbone_maps(backbone: Any, images: Sequence[torch.Tensor], normalisers: Iterable[nn.Module]) -> torch.Tensor:
    """Return backbone features (B, P, F) of all cameras' map points, in lerobot's order.

    Args:
        backbone: That of lerobot's ``ACT``, or a copy.
        images: One (B, H, W, 3) uint8 tensor for each camera.
        normalisers: One for each camera, of channels in [0, 1].
    """
    in_graph = torch.onnx.is_in_onnx_export()
    prepared = [
        _prepared_in_graph(image, normaliser) if in_graph else normaliser(image.float().div_(255)).permute(0, 3, 1, 2)
        for image, normaliser in zip(images, normalisers, strict=True)
    ]
    if len({tuple(map(int, image.shape)) for image in prepared}) == 1:  # numbers, also where shapes are traced
        maps = backbone(torch.cat(prepared))["feature_map"].chunk(len(prepared))
    else:
        maps = [backbone(image)["feature_map"] for image in prepared]
    return torch.cat([item.flatten(2).transpose(1, 2) for item in maps], 1)


def _prepared_in_graph(image: torch.Tensor, normaliser: Any) -> torch.Tensor:
    """Return a normalised picture (B, 3, H, W) by one product and one sum per channel, whose pixels lie together.

    onnxruntime is slow at a product with three numbers over the last axis; torch keeps the pictures as they come.
    """
    factor = 1.0 / (255.0 * normaliser.scale)
    offset = normaliser.shift - normaliser.mean / normaliser.scale
    prepared: torch.Tensor = image.permute(0, 3, 1, 2).float() * factor.view(1, -1, 1, 1) + offset.view(1, -1, 1, 1)
    return prepared


def backbone_positions(act: Any, shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Return the positions (P, D) of all cameras' map points for image shapes (H, W, 3)."""
    parts = []
    with torch.no_grad():
        for height, width, channels in shapes:
            image = torch.zeros(1, channels, height, width, device=act.action_head.weight.device)
            features = act.backbone(image)["feature_map"]
            parts.append(act.encoder_cam_feat_pos_embed(features).flatten(2)[0].T)
    return torch.cat(parts) if parts else act.action_head.weight.new_zeros(0, act.action_head.in_features)


class Critic(nn.Module):
    """V(s): mean of the memory tokens, with further vectors beside it, through a small network.

    ``encoder`` is an own copy of the actor's, or None where that one is frozen and its memory is shared.
    """

    def __init__(
        self, width: int, hidden: tuple[int, ...], *, encoder: EncoderCopy | None, generator: torch.Generator
    ) -> None:
        """Make the head over ``width`` entries: those of a token, and of the further vectors."""
        super().__init__()
        self.encoder = encoder
        self.head = make_mlp((width, *hidden, 1), generator=generator, activation="tanh")

    def forward(self, memory: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
        """Return (B,) values of memory tokens (B, S, D) and further normalised vectors (B, E)."""
        pooled = memory.mean(1)
        value: torch.Tensor = self.head(pooled if extra is None else torch.cat((pooled, extra), -1)).squeeze(-1)
        return value


def _attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Multi-head attention of lerobot's ``nn.MultiheadAttention`` module, batch first, without weights returned."""
    width = module.embed_dim
    weight, bias = module.in_proj_weight, module.in_proj_bias
    if query is key:
        q, k = linear(query, weight[: 2 * width], bias[: 2 * width]).chunk(2, -1)
    else:
        q = linear(query, weight[:width], bias[:width])
        k = linear(key, weight[width : 2 * width], bias[width : 2 * width])
    v = linear(value, weight[2 * width :], bias[2 * width :])
    heads = (module.num_heads, width // module.num_heads)
    q, k, v = (item.view(*item.shape[:-1], *heads) for item in (q, k, v))
    if k.shape[1] <= FEW_TOKENS:
        scores = (q[:, :, None] * k[:, None]).sum(-1) * (width // module.num_heads) ** -0.5
        mixed = (torch.softmax(scores, 2)[..., None] * v[:, None]).sum(2)
    else:
        q, k, v = q.expand(len(v), -1, -1, -1).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2)
    return module.out_proj(mixed.flatten(2))  # type: ignore[no-any-return]


def _encoder_layer(layer: Any, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    if layer.pre_norm:
        inner = layer.norm1(x)
        with_positions = inner + positions
        x = x + _attention(layer.self_attn, with_positions, with_positions, inner)
        return x + _feed_forward(layer, layer.norm2(x))
    with_positions = x + positions
    x = layer.norm1(x + _attention(layer.self_attn, with_positions, with_positions, x))
    return layer.norm2(x + _feed_forward(layer, x))  # type: ignore[no-any-return]


def _decoder_layer(
    layer: Any, x: torch.Tensor, memory: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor, *, constant: bool
) -> torch.Tensor:
    """One decoder layer; ``constant`` when x is zero, so that self-attention gives one vector for all positions."""
    inner = layer.norm1(x) if layer.pre_norm else x
    if constant:
        mixed = _constant_attention(layer.self_attn, inner[:, :1])
    else:
        with_positions = inner + queries
        mixed = _attention(layer.self_attn, with_positions, with_positions, inner)
    x = x + mixed
    inner = layer.norm2(x) if layer.pre_norm else layer.norm1(x)
    skip = x if layer.pre_norm else inner
    x = skip + _attention(layer.multihead_attn, inner + queries, keys, memory)
    if layer.pre_norm:
        return x + _feed_forward(layer, layer.norm3(x))
    x = layer.norm2(x)
    return layer.norm3(x + _feed_forward(layer, x))  # type: ignore[no-any-return]


def _constant_attention(module: Any, value: torch.Tensor) -> torch.Tensor:
    """Attention over equal values (1, 1, D): the weights add up to one, so it is the projected value itself."""
    width = module.embed_dim
    projected = linear(value, module.in_proj_weight[2 * width :], module.in_proj_bias[2 * width :])
    return module.out_proj(projected)  # type: ignore[no-any-return]


def _feed_forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer.linear2(layer.activation(layer.linear1(x)))  # type: ignore[no-any-return]
