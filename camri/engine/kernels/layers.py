"""What lies between the convolutions of several models: batch norm, pooling, dropout, ReLU, each in one pass.

Tensors are (R, M, C): models, pixels of a batch, channels. A pass that also sums over the pixels leaves one sum a block
of rows in `part`; `finish_…` adds these up, always in the same order.
"""

import triton
import triton.language as tl


@triton.jit
def finish_statistics(  # type: ignore[no-untyped-def]
    part, mean, rstd, running, running_stride, momentum, eps,
    BLOCKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sd of the channels from the mean and squared deviations of BLOCKS blocks of ROWS pixels.

    `running` holds the running means of a model, then its variances.
    """
    r = tl.program_id(1)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    block = tl.arange(0, PADDED)
    ok = (block < BLOCKS)[:, None]
    at = part + ((r * BLOCKS + block) * 2)[:, None] * C + c[None, :]
    means = tl.load(at, mask=ok, other=0.0)
    centre = tl.sum(means, axis=0) / BLOCKS
    off = tl.where(ok, means - centre[None, :], 0.0)
    squares = tl.sum(tl.load(at + C, mask=ok, other=0.0), axis=0) + ROWS * tl.sum(off * off, axis=0)
    tl.store(mean + r * C + c, centre)
    tl.store(rstd + r * C + c, 1 / tl.sqrt(squares / (BLOCKS * ROWS) + eps))
    old = running + r * running_stride + c
    tl.store(old, (1 - momentum) * tl.load(old) + momentum * centre)
    tl.store(old + C, (1 - momentum) * tl.load(old + C) + momentum * squares / (BLOCKS * ROWS - 1))


@triton.jit
def normalise(  # type: ignore[no-untyped-def]
    x, mean, rstd, gain, offset, stride, out, M: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    r = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < M * C
    c = at % C
    scale = tl.load(rstd + r * C + c) * tl.load(gain + r * stride + c)
    value = tl.load(x + r.to(tl.int64) * M * C + at, mask=ok, other=0.0).to(tl.float32) - tl.load(mean + r * C + c)
    value = value * scale + tl.load(offset + r * stride + c)
    tl.store(out + r.to(tl.int64) * M * C + at, value.to(out.dtype.element_ty), mask=ok)


@triton.jit
def finish_sums(  # type: ignore[no-untyped-def]
    part, first, second, stride,
    BLOCKS: tl.constexpr, NUM: tl.constexpr, C: tl.constexpr, BC: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Add up the blocks' sums, NUM (1 or 2) a block: into `first` and `second`, gradients of models `stride` apart."""
    r = tl.program_id(1)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    total = tl.zeros((STEP, BC), dtype=tl.float32)
    other = tl.zeros((STEP, BC), dtype=tl.float32)
    for start in range(0, BLOCKS, STEP):
        block = start + tl.arange(0, STEP)
        ok = (block < BLOCKS)[:, None]
        at = part + ((r * BLOCKS + block) * NUM)[:, None] * C + c[None, :]
        total += tl.load(at, mask=ok, other=0.0)
        if NUM == 2:
            other += tl.load(at + C, mask=ok, other=0.0)
    tl.store(first + r * stride + c, tl.sum(total, axis=0).to(first.dtype.element_ty))
    if NUM == 2:
        tl.store(second + r * stride + c, tl.sum(other, axis=0).to(second.dtype.element_ty))


@triton.jit
def normalise_back(  # type: ignore[no-untyped-def]
    dy, x, mean, rstd, gain, d_offset, d_gain, stride, dz, part,
    M: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient before a batch norm that follows a ReLU, both undone; `part` gets its sums over the blocks."""
    r = tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = (row < M)[:, None]
    at = (r.to(tl.int64) * M + row)[:, None] * C + c[None, :]
    scale = tl.load(rstd + r * C + c)
    value = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    unit = (value - tl.load(mean + r * C + c)[None, :]) * scale[None, :]
    sums = tl.load(d_offset + r * stride + c) / M
    turns = tl.load(d_gain + r * stride + c) / M
    slope = tl.load(dy + at, mask=ok, other=0.0).to(tl.float32) - sums[None, :] - unit * turns[None, :]
    slope = slope * (scale * tl.load(gain + r * stride + c))[None, :]
    slope = tl.where(ok & (value > 0), slope, 0.0).to(dz.dtype.element_ty)
    tl.store(dz + at, slope, mask=ok)
    blocks = tl.num_programs(0)
    tl.store(part + (r * blocks + tl.program_id(0)) * C + c, tl.sum(slope.to(tl.float32), axis=0))


@triton.jit
def _hash(x, key):  # type: ignore[no-untyped-def]
    """`camri.models._hash`, of which this must be the same to the bit."""
    x = x + key
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x + key
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _kept(position, seeds, step, r, THRESHOLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which entries dropout keeps, by their position in a model's batch."""
    call = tl.load(step).to(tl.int32)
    key = _hash(call, tl.load(seeds + 2 * r + 1)) + tl.load(seeds + 2 * r)
    return _hash(position.to(tl.int32), key) >= THRESHOLD


@triton.jit
def pool(  # type: ignore[no-untyped-def]
    x, out, seeds, step, scale,
    M: tl.constexpr, W: tl.constexpr, C: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Maxima of 2 x 2 pixels, then dropout. M pixels come out, W to a row."""
    r = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < M * C
    c = at % C
    pixel = at // C
    first = ((pixel // W) * 4 * W + (pixel % W) * 2) * C + c  # two rows of 2 W pixels to each row of W
    source = x + r.to(tl.int64) * 4 * M * C + first
    a = tl.load(source, mask=ok, other=0.0)
    b = tl.load(source + C, mask=ok, other=0.0)
    d = tl.load(source + 2 * W * C, mask=ok, other=0.0)
    e = tl.load(source + (2 * W + 1) * C, mask=ok, other=0.0)
    top = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.maximum(d, e, propagate_nan=tl.PropagateNan.ALL)
    value = tl.maximum(top, low, propagate_nan=tl.PropagateNan.ALL).to(tl.float32)
    if DROPS:
        value = tl.where(_kept(at, seeds, step, r, THRESHOLD), value * scale, 0.0)
    tl.store(out + r.to(tl.int64) * M * C + at, value.to(out.dtype.element_ty), mask=ok)


@triton.jit
def pool_back(  # type: ignore[no-untyped-def]
    dy, x, dz, part, seeds, step, scale,
    M: tl.constexpr, W: tl.constexpr, C: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient before ReLU, pooling and dropout; the first of equal maxima gets it. `part`: its sums over blocks."""
    r = tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = (pixel < M)[:, None]
    at = pixel[:, None] * C + c[None, :]
    slope = tl.load(dy + r.to(tl.int64) * M * C + at, mask=ok, other=0.0).to(tl.float32)
    if DROPS:
        slope = tl.where(_kept(at, seeds, step, r, THRESHOLD), slope * scale, 0.0)
    first = r.to(tl.int64) * 4 * M * C + ((pixel // W) * 4 * W + (pixel % W) * 2)[:, None] * C + c[None, :]
    a = tl.load(x + first, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(x + first + C, mask=ok, other=0.0).to(tl.float32)
    d = tl.load(x + first + 2 * W * C, mask=ok, other=0.0).to(tl.float32)
    e = tl.load(x + first + (2 * W + 1) * C, mask=ok, other=0.0).to(tl.float32)
    most = tl.maximum(tl.maximum(a, b), tl.maximum(d, e))
    slope = tl.where(ok & (most > 0), slope, 0.0).to(dz.dtype.element_ty)
    zero = tl.zeros_like(slope)
    is_a = a == most
    is_b = (b == most) & (a != most)
    is_d = (d == most) & (a != most) & (b != most)
    is_e = (a != most) & (b != most) & (d != most)
    tl.store(dz + first, tl.where(is_a, slope, zero), mask=ok)
    tl.store(dz + first + C, tl.where(is_b, slope, zero), mask=ok)
    tl.store(dz + first + 2 * W * C, tl.where(is_d, slope, zero), mask=ok)
    tl.store(dz + first + (2 * W + 1) * C, tl.where(is_e, slope, zero), mask=ok)
    blocks = tl.num_programs(0)
    tl.store(part + (r * blocks + tl.program_id(0)) * C + c, tl.sum(slope.to(tl.float32), axis=0))


@triton.jit
def average(x, out, PIXELS: tl.constexpr, C: tl.constexpr, BC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Means over an image's PIXELS."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    values = tl.load(x + (image * PIXELS + tl.arange(0, PIXELS))[:, None] * C + c[None, :]).to(tl.float32)
    tl.store(out + image * C + c, (tl.sum(values, axis=0) / PIXELS).to(out.dtype.element_ty))


@triton.jit
def average_back(da, x, dz, part, PIXELS: tl.constexpr, C: tl.constexpr, BC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradient before a ReLU whose outputs were averaged over PIXELS; `part`: its sums over each image."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    at = (image * PIXELS + tl.arange(0, PIXELS))[:, None] * C + c[None, :]
    slope = tl.load(da + image * C + c).to(tl.float32) / PIXELS
    slope = tl.where(tl.load(x + at) > 0, slope[None, :], 0.0).to(dz.dtype.element_ty)
    tl.store(dz + at, slope)
    tl.store(part + image * C + c, tl.sum(slope.to(tl.float32), axis=0))
