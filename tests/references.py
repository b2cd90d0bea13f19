"""The losses once more, slowly: float64, one sample at a time, written from the equations with no trick in them."""

import math

from torch import Tensor


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def one_hot(label: int, num_classes: int, smoothing: float) -> list[float]:
    return [(1 - smoothing) * (k == label) + smoothing / num_classes for k in range(num_classes)]


def over_rows(outputs: Tensor, labels: Tensor, loss) -> Tensor:
    rows = outputs.double().tolist()
    return outputs.new_tensor(
        [loss(row, int(t)) for row, t in zip(rows, labels, strict=True)], dtype=outputs.double().dtype
    )


def cross_entropy(logits, labels, smoothing=0.0):
    def loss(row, t):
        h, y = softmax(row), one_hot(t, len(row), smoothing)
        return -sum(y[k] * math.log(h[k]) for k in range(len(row)))

    return over_rows(logits, labels, loss)


def weighted_cross_entropy(logits, labels, weights, smoothing=0.0):
    w = weights.double().tolist()

    def loss(row, t):
        h, y = softmax(row), one_hot(t, len(row), smoothing)
        return -sum(w[k] * y[k] * math.log(h[k]) for k in range(len(row)))

    return over_rows(logits, labels, loss)


def real_world_weight_cross_entropy(logits, labels, false_negative, false_positive, smoothing=0.0):
    c, cost = false_negative.double().tolist(), false_positive.double().tolist()

    def loss(row, t):
        h, y = softmax(row), one_hot(t, len(row), smoothing)
        total = 0.0
        for k in range(len(row)):
            total += c[k] * y[k] * math.log(h[k])
            for other in range(len(row)):
                if other != k:
                    total += cost[other][k] * y[k] * math.log(1 - h[other])
        return -total

    return over_rows(logits, labels, loss)


def wasserstein(logits, labels, cost, entropy):
    """Equation 4 with its single feasible plan T = h yᵀ written out."""
    c = cost.double().tolist()

    def loss(row, t):
        num_classes, h = len(row), softmax(row)
        plan = [[h[k] if other == t else 0.0 for other in range(num_classes)] for k in range(num_classes)]
        moved = sum(plan[k][j] * c[k][j] for k in range(num_classes) for j in range(num_classes))
        spread = -sum(p * (math.log(p) - 1) for line in plan for p in line if p > 0)
        return moved - entropy * spread

    return over_rows(logits, labels, loss)


def margin_softmax(cos, labels, margins, scale, beyond_pi="paper", smoothing=0.0):
    m = margins.double().tolist()

    def loss(row, t):
        theta = [math.acos(min(1.0, max(-1.0, value))) for value in row]
        widened = math.cos(theta[t] + m[t])
        if theta[t] + m[t] > math.pi:
            if beyond_pi == "monotone":
                widened = -2 - widened
            elif beyond_pi == "clip":
                widened = math.cos(theta[t]) - m[t] * math.sin(m[t])
        h = softmax([scale * (widened if k == t else math.cos(theta[k])) for k in range(len(row))])
        y = one_hot(t, len(row), smoothing)
        return -sum(y[k] * math.log(h[k]) for k in range(len(row)))

    return over_rows(cos, labels, loss)


def cosine_margin_softmax(cos, labels, margins, scale, smoothing=0.0):
    m = margins.double().tolist()

    def loss(row, t):
        h = softmax([scale * (value - m[t] * (k == t)) for k, value in enumerate(row)])
        y = one_hot(t, len(row), smoothing)
        return -sum(y[k] * math.log(h[k]) for k in range(len(row)))

    return over_rows(cos, labels, loss)


def two_sided_margin_softmax(cos, labels, margins, scale, smoothing=0.0):
    m = margins.double().tolist()

    def loss(row, t):
        h = softmax([scale * (value - m[k] if k == t else value + m[k]) for k, value in enumerate(row)])
        y = one_hot(t, len(row), smoothing)
        return -sum(y[k] * math.log(h[k]) for k in range(len(row)))

    return over_rows(cos, labels, loss)


def two_sided_margin(logits, labels, margins, one_vs_rest=None, margin=0.0, smoothing=0.0):
    m = margins.double().tolist()
    w = [0.0] * len(m) if one_vs_rest is None else one_vs_rest.double().tolist()

    def loss(row, t):
        h = softmax([value - m[k] - float(margin) if k == t else value + m[k] for k, value in enumerate(row)])
        y = one_hot(t, len(row), smoothing)
        total = -sum(y[k] * math.log(h[k]) for k in range(len(row)))
        for k in range(len(row)):
            others = math.log(sum(math.exp(value) for j, value in enumerate(row) if j != k))
            odds = row[k] - others + (-m[k] if k == t else m[k])
            total += w[k] * (y[k] * math.log(1 + math.exp(-odds)) + (1 - y[k]) * math.log(1 + math.exp(odds)))
        return total

    return over_rows(logits, labels, loss)


def ldam(cos, labels, margins, scale, weights, smoothing=0.0):
    return weights.double()[labels] * cosine_margin_softmax(cos, labels, margins, scale, smoothing)


def focal(logits, labels, gamma, weights, smoothing=0.0):
    g, w = gamma.double().tolist(), weights.double().tolist()

    def loss(row, t):
        h, y = softmax(row), one_hot(t, len(row), smoothing)
        return -sum(y[k] * w[k] * (1 - h[k]) ** g[k] * math.log(h[k]) for k in range(len(row)))

    return over_rows(logits, labels, loss)


def logit_adjusted(logits, labels, adjustments, smoothing=0.0):
    return cross_entropy(logits.double() + adjustments.double(), labels, smoothing)


def vector_scaling(logits, labels, scales, shifts, weights, smoothing=0.0):
    adjusted = logits.double() * scales.double() + shifts.double()
    return weights.double()[labels] * cross_entropy(adjusted, labels, smoothing)
