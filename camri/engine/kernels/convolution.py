"""3 x 3 convolutions of several models in one launch: matrix products of shifted images with weights.

Images are (R, N, H, W, C) for R models and N images each, weights (R, out, 9, in). The gradient of a convolution's
input is a convolution too: of its output's gradient, with weights that `turn` has turned round.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(  # type: ignore[no-untyped-def]
    x, w, out, bias, act, mean, rstd, part, w_stride, bias_stride,
    N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CK: tl.constexpr, CN: tl.constexpr, THEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`out` (R, N H W, CN) from `x` with CK channels.

    What follows by THEN: "nothing"; "relu": bias and ReLU; "statistics": these, and mean and squared deviations of each
    block to `part` (R, blocks, 2, CN); "mask": 0 where `act` is 0, and the block's sums to `part` (R, blocks, CN);
    "sums": the block's sums of the result and of its product with `act` less `mean` times `rstd`, to `part`.

    Blocks are fetched by address and not as tensor descriptors: Triton 3.6 reads a reshaped block into registers, and
    overwrites it before all warps have read; 120 of 278 combinations of shapes and tiles were wrong by 1 to 24 %.
    """
    M: tl.constexpr = N * H * W
    MB: tl.constexpr = M // BM
    NB: tl.constexpr = CN // BN
    KB: tl.constexpr = CK // BK
    pid = tl.program_id(0)
    r = pid // (MB * NB)
    mb = (pid // NB) % MB
    pixel = mb * BM + tl.arange(0, BM)
    cols = (pid % NB) * BN + tl.arange(0, BN)
    ck = tl.arange(0, BK)
    h = (pixel // W) % H
    v = pixel % W
    x_block = x + r.to(tl.int64) * M * CK + (pixel[:, None] * CK + ck[None, :])
    w_block = w + r.to(tl.int64) * w_stride + (cols[None, :] * (9 * CK) + ck[:, None])
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, 9 * KB, num_stages=STAGES):
        tap = k // KB
        c0 = (k % KB) * BK
        dh = tap // 3 - 1
        dv = tap % 3 - 1
        inside = (h + dh >= 0) & (h + dh < H) & (v + dv >= 0) & (v + dv < W)
        a = tl.load(x_block + ((dh * W + dv) * CK + c0), mask=inside[:, None], other=0.0)
        acc = tl.dot(a, tl.load(w_block + (tap * CK + c0)), acc)
    at = pixel[:, None] * CN + cols[None, :]
    act += r.to(tl.int64) * M * CN
    sums = part + (r * MB + mb) * CN + cols
    if THEN == "relu" or THEN == "statistics":
        acc += tl.load(bias + r.to(tl.int64) * bias_stride + cols).to(tl.float32)[None, :]
        acc = tl.where(acc < 0, 0.0, acc)  # NaN stays NaN
    value = acc.to(out.dtype.element_ty)
    if THEN == "statistics":
        centre = tl.sum(value.to(tl.float32), axis=0) / BM
        off = value.to(tl.float32) - centre[None, :]
        sums += (r * MB + mb) * CN
        tl.store(sums, centre)
        tl.store(sums + CN, tl.sum(off * off, axis=0))
    if THEN == "mask":
        value = tl.where(tl.load(act + at) > 0, value, 0.0)
        tl.store(sums, tl.sum(value.to(tl.float32), axis=0))
    if THEN == "sums":
        seen = tl.load(act + at).to(tl.float32) - tl.load(mean + r * CN + cols)[None, :]
        seen = seen * tl.load(rstd + r * CN + cols)[None, :]
        sums += (r * MB + mb) * CN
        tl.store(sums, tl.sum(value.to(tl.float32), axis=0))
        tl.store(sums + CN, tl.sum(value.to(tl.float32) * seen, axis=0))
    tl.store(out + r.to(tl.int64) * M * CN + at, value)


@triton.jit
def turn(w, out, w_stride, CI: tl.constexpr, CO: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weights (R, CO, 9, CI) -> (R, CI, 9, CO), the nine taps in reverse order."""
    tap = tl.program_id(1)
    r = tl.program_id(2).to(tl.int64)
    o = (tl.program_id(0) // (CI // BLOCK)) * BLOCK + tl.arange(0, BLOCK)
    i = (tl.program_id(0) % (CI // BLOCK)) * BLOCK + tl.arange(0, BLOCK)
    block = tl.load(w + r * w_stride + o[:, None] * (9 * CI) + tap * CI + i[None, :])
    tl.store(out + r * (9 * CI * CO) + i[:, None] * (9 * CO) + (8 - tap) * CO + o[None, :], block.T)


@triton.jit
def weight_gradient(  # type: ignore[no-untyped-def]
    dz, x, out, stride, num_models,
    N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, SPLIT: tl.constexpr,
    TAPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums over pixels of dz[pixel, o] x[pixel + tap, i], for TAPS (1 or 3) taps a program: `out` (SPLIT R, CO, 9, CI).

    `dz` (R N H W, CO) and `x` (R N, H, W, CI) are tensor descriptors: the chip's copy engine fetches blocks, and reads
    zeros beyond an image's edges. A block of pixels is some whole rows of an image, or some whole images.
    The pixels are cut in SPLIT parts, to have enough programs where the weights are few; `add_parts` adds them up.
    """
    M: tl.constexpr = N * H * W
    MB: tl.constexpr = CO // BM
    NB: tl.constexpr = CI // BN
    TB: tl.constexpr = 9 // TAPS
    STEPS: tl.constexpr = M // (BK * SPLIT)
    pid = tl.program_id(0)
    tile = pid % (MB * NB * TB)
    s = (pid // (MB * NB * TB)) % SPLIT
    r = pid // (MB * NB * TB * SPLIT)
    m0 = (tile % MB) * BM
    n0 = ((tile // MB) % NB) * BN
    tap = (tile // (MB * NB)) * TAPS
    left = tl.zeros((BM, BN), dtype=tl.float32)
    if TAPS == 3:
        middle = tl.zeros((BM, BN), dtype=tl.float32)
        right = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, STEPS, num_stages=STAGES):
        pixel = (s * STEPS + k) * BK
        image = r * N + pixel // (H * W)
        top = (pixel % (H * W)) // W + tap // 3 - 1
        slope = dz.load([r * M + pixel, m0]).T
        left = tl.dot(slope, x.load([image, top, tap % 3 - 1, n0]).reshape(BK, BN), left)
        if TAPS == 3:
            middle = tl.dot(slope, x.load([image, top, 0, n0]).reshape(BK, BN), middle)
            right = tl.dot(slope, x.load([image, top, 1, n0]).reshape(BK, BN), right)
    kind = out.dtype.element_ty
    o = m0 + tl.arange(0, BM)
    i = n0 + tl.arange(0, BN)
    base = out + (s * num_models + r).to(tl.int64) * stride + o[:, None] * (9 * CI) + tap * CI + i[None, :]
    tl.store(base, left.to(kind))
    if TAPS == 3:
        tl.store(base + CI, middle.to(kind))
        tl.store(base + 2 * CI, right.to(kind))


@triton.jit
def add_parts(part, out, stride, size, num_models, SPLIT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """`out` (R, size) = the sum of `part` (SPLIT, R, size) over its first dimension, always in the same order."""
    r = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for s in tl.static_range(SPLIT):
        total += tl.load(part + (s * num_models + r).to(tl.int64) * size + at, mask=ok, other=0.0)
    tl.store(out + r.to(tl.int64) * stride + at, total.to(out.dtype.element_ty), mask=ok)
