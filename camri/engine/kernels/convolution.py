"""3 x 3 convolutions of several models in one launch, as matrix products over shifted images.

Images lie as (R, N, H, W, C), one model after another; weights as (R, out, 3, 3, in) in models' flat buffers.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(  # type: ignore[no-untyped-def]
    x, w, out, bias, act, mean, rstd, part, w_stride, b_stride,
    N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CK: tl.constexpr, CN: tl.constexpr,
    BACK: tl.constexpr, EPI: tl.constexpr, TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, GM: tl.constexpr,
):  # fmt: skip
    """EPI 0: nothing; 1: bias, ReLU; 2: that and mean, M2 of blocks; 3: ReLU's mask of `act` and sums of blocks;
    4: sums of blocks for batch norm's backward pass."""
    M: tl.constexpr = N * H * W
    MB: tl.constexpr = (M + BM - 1) // BM
    NB: tl.constexpr = CN // BN
    pid = tl.program_id(0)
    r = pid // (MB * NB)
    pid = pid % (MB * NB)
    group = pid // (GM * NB)
    rows_in_group = min(MB - group * GM, GM)
    mb = group * GM + (pid % (GM * NB)) % rows_in_group
    nb = (pid % (GM * NB)) // rows_in_group
    n0 = nb * BN
    rows = mb * BM + tl.arange(0, BM)
    cols = n0 + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    KC: tl.constexpr = CK // BK
    if TMA:
        # blocks of whole rows, or of whole images
        PER: tl.constexpr = H * W
        image = r * N + (mb * BM) // PER
        top = ((mb * BM) % PER) // W
        for k in tl.range(0, 9 * KC, num_stages=STAGES):
            tap = k // KC
            c0 = (k % KC) * BK
            a = x.load([image, top + tap // 3 - 1, tap % 3 - 1, c0]).reshape(BM, BK)
            if BACK:
                b = w.load([r, c0, 8 - tap, n0]).reshape(BK, BN)
                acc = tl.dot(a, b, acc)
            else:
                b = w.load([r, n0, tap, c0]).reshape(BN, BK)
                acc = tl.dot(a, b.T, acc)
    else:
        h = (rows // W) % H
        v = rows % W
        ck = tl.arange(0, BK)
        x_rows = x + (r.to(tl.int64) * M + rows)[:, None] * CK + ck[None, :]
        if BACK:
            w_tile = w + r.to(tl.int64) * w_stride + ck[:, None] * (9 * CN) + cols[None, :]
        else:
            w_tile = w + r.to(tl.int64) * w_stride + cols[None, :] * (9 * CK) + ck[:, None]
        for k in tl.range(0, 9 * KC, num_stages=STAGES):
            tap = k // KC
            c0 = (k % KC) * BK
            dh = tap // 3 - 1
            dv = tap % 3 - 1
            inside = (h + dh >= 0) & (h + dh < H) & (v + dv >= 0) & (v + dv < W) & (rows < M)
            a = tl.load(x_rows + ((dh * W + dv) * CK + c0), mask=inside[:, None], other=0.0)
            if BACK:
                b = tl.load(w_tile + c0 * 9 * CN + (8 - tap) * CN)
            else:
                b = tl.load(w_tile + (tap * CK + c0))
            acc = tl.dot(a, b, acc)
    at = (r.to(tl.int64) * M + rows)[:, None] * CN + cols[None, :]
    ok = (rows < M)[:, None]
    if EPI == 1 or EPI == 2:
        acc += tl.load(bias + r.to(tl.int64) * b_stride + cols).to(tl.float32)[None, :]
        acc = tl.where(acc < 0, 0.0, acc)  # NaN stays NaN
    value = acc.to(out.dtype.element_ty)
    if EPI == 2:
        kept = value.to(tl.float32)
        num = min(M - mb * BM, BM)
        centre = tl.sum(tl.where(ok, kept, 0.0), axis=0) / num
        off = tl.where(ok, kept - centre[None, :], 0.0)
        tl.store(part + ((r * MB + mb) * 2) * CN + cols, centre)
        tl.store(part + ((r * MB + mb) * 2 + 1) * CN + cols, tl.sum(off * off, axis=0))
    if EPI == 3:
        value = tl.where(tl.load(act + at, mask=ok, other=0.0) > 0, value, 0.0)
        tl.store(part + (r * MB + mb) * CN + cols, tl.sum(value.to(tl.float32), axis=0))
    if EPI == 4:
        seen = tl.load(act + at, mask=ok, other=0.0).to(tl.float32)
        seen = (seen - tl.load(mean + r * CN + cols)[None, :]) * tl.load(rstd + r * CN + cols)[None, :]
        kept = tl.where(ok, value.to(tl.float32), 0.0)
        tl.store(part + ((r * MB + mb) * 2) * CN + cols, tl.sum(kept, axis=0))
        tl.store(part + ((r * MB + mb) * 2 + 1) * CN + cols, tl.sum(kept * seen, axis=0))
    tl.store(out + at, value, mask=ok)


@triton.jit
def weight_gradient(  # type: ignore[no-untyped-def]
    dz, x, out, out_stride,
    N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, SPLIT: tl.constexpr,
    TMA: tl.constexpr, TAPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Sum over a part of the pixels of dz[pixel, o] x[pixel + tap, i]; `out` (SPLIT, R, CO, 9, CI) float32, or with
    SPLIT = 1 bfloat16 in the flat buffer."""
    M: tl.constexpr = N * H * W
    MB: tl.constexpr = CO // BM
    NB: tl.constexpr = CI // BN
    TB: tl.constexpr = 9 // TAPS
    STEPS: tl.constexpr = M // (BK * SPLIT)
    pid = tl.program_id(0)
    tile = pid % (MB * NB * TB)
    rest = pid // (MB * NB * TB)
    s = rest % SPLIT
    r = rest // SPLIT
    mb = tile % MB
    nb = (tile // MB) % NB
    tap = (tile // (MB * NB)) * TAPS
    dh = tap // 3 - 1
    dv = tap % 3 - 1
    o = mb * BM + tl.arange(0, BM)
    i = nb * BN + tl.arange(0, BN)
    acc0 = tl.zeros((BM, BN), dtype=tl.float32)
    if TAPS == 3:
        acc1 = tl.zeros((BM, BN), dtype=tl.float32)
        acc2 = tl.zeros((BM, BN), dtype=tl.float32)
    PER: tl.constexpr = H * W
    for k in tl.range(0, STEPS, num_stages=STAGES):
        p0 = (s * STEPS + k) * BK
        if TMA:
            a = dz.load([r * M + p0, mb * BM])
            image = r * N + p0 // PER
            top = (p0 % PER) // W + dh
            b = x.load([image, top, dv, nb * BN]).reshape(BK, BN)
            acc0 = tl.dot(a.T, b, acc0)
            if TAPS == 3:
                b1 = x.load([image, top, 0, nb * BN]).reshape(BK, BN)
                acc1 = tl.dot(a.T, b1, acc1)
                b2 = x.load([image, top, 1, nb * BN]).reshape(BK, BN)
                acc2 = tl.dot(a.T, b2, acc2)
        else:
            p = p0 + tl.arange(0, BK)
            h = (p // W) % H + dh
            v = p % W + dv
            a = tl.load(dz + (r.to(tl.int64) * M + p)[:, None] * CO + o[None, :])
            rows_in = (h >= 0) & (h < H)
            at = x + (r.to(tl.int64) * M + p + dh * W + dv)[:, None] * CI + i[None, :]
            b = tl.load(at, mask=(rows_in & (v >= 0) & (v < W))[:, None], other=0.0)
            acc0 = tl.dot(a.T, b, acc0)
            if TAPS == 3:
                b1 = tl.load(at + CI, mask=rows_in[:, None], other=0.0)
                acc1 = tl.dot(a.T, b1, acc1)
                b2 = tl.load(at + 2 * CI, mask=(rows_in & (v + 2 < W))[:, None], other=0.0)
                acc2 = tl.dot(a.T, b2, acc2)
    kind = out.dtype.element_ty
    base = out + (s * R + r).to(tl.int64) * out_stride + o[:, None] * (9 * CI) + tap * CI + i[None, :]
    tl.store(base, acc0.to(kind))
    if TAPS == 3:
        tl.store(base + CI, acc1.to(kind))
        tl.store(base + 2 * CI, acc2.to(kind))


@triton.jit
def add_parts(part, out, out_stride, size, SPLIT: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """`out` (R, size) = the sum over the first dimension of `part` (SPLIT, R, size), always in the same order."""
    r = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for s in tl.static_range(SPLIT):
        total += tl.load(part + (s * R + r).to(tl.int64) * size + at, mask=ok, other=0.0)
    tl.store(out + r.to(tl.int64) * out_stride + at, total.to(out.dtype.element_ty), mask=ok)
