"""The equations of every causal cell in numpy: `(params, xs, d) -> outputs`, step by step."""

from __future__ import annotations

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def rnn(p, xs, d, bend=np.tanh):
    h = np.zeros(d)
    for x in xs:
        h = bend(x @ p["input"] + h @ p["recurrent"] + p["bias"])
        yield h


def relu_rnn(p, xs, d):
    return rnn(p, xs, d, lambda a: np.maximum(a, 0))


def output_rnn(p, xs, d):
    o = np.zeros(d)
    for x in xs:
        h = np.tanh(x @ p["input"] + o @ p["recurrent"] + p["bias"])
        o = h @ p["output"] + p["output_bias"]
        yield o


def lstm(p, xs, d):
    h, c = np.zeros(d), np.zeros(d)
    for x in xs:
        i, f, g, o = np.split(x @ p["input"] + h @ p["recurrent"] + p["bias"], 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        yield h


def gru(p, xs, d):
    h = np.zeros(d)
    for x in xs:
        given = np.split(x @ p["input"] + p["bias"], 3)
        of_z, of_r = np.split(p["gates"], 2, axis=1)
        z, r = sigmoid(given[0] + h @ of_z), sigmoid(given[1] + h @ of_r)
        h = (1 - z) * h + z * np.tanh(given[2] + (r * h) @ p["candidate"])
        yield h


def gru_after(p, xs, d):
    h = np.zeros(d)
    for x in xs:
        given = np.split(x @ p["input"] + p["bias"], 3)
        of_z, of_r, of_n = np.split(p["recurrent"], 3, axis=1)
        z, r = sigmoid(given[0] + h @ of_z), sigmoid(given[1] + h @ of_r)
        h = (1 - z) * h + z * np.tanh(given[2] + r * (h @ of_n + p["candidate_bias"]))
        yield h


def sru(p, xs, d):
    c = np.zeros(d)
    of_f, of_r, of_c = np.split(p["input"], 3, axis=1)
    v = p.get("peephole", np.zeros(2 * d))
    for x in xs:
        f = sigmoid(x @ of_f + v[:d] * c + p["bias"][:d])
        r = sigmoid(x @ of_r + v[d:] * c + p["bias"][d:])
        c = f * c + (1 - f) * (x @ of_c)
        yield r * c + (1 - r) * (x @ p["skip"] if "skip" in p else x)


def qrnn(p, xs, d):
    c = np.zeros(d)
    taps = np.split(p["input"], p["input"].shape[1] // (3 * d), axis=1)
    for t in range(len(xs)):
        window = [xs[t - j] @ tap for j, tap in enumerate(taps) if t >= j]
        z, f, o = np.split(sum(window) + p["bias"], 3)
        c = sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(z)
        yield sigmoid(o) * c


def onlstm(p, xs, d):
    h, c = np.zeros(d), np.zeros(d)
    groups = p["master"].shape[1] // 2

    def cumax(a):
        return np.repeat(np.cumsum(np.exp(a) / np.sum(np.exp(a))), d // groups)

    for x in xs:
        scores = x @ p["input"] + h @ np.hstack([p["recurrent"], p["master"]]) + p["bias"]
        i, f, g, o = np.split(scores[: 4 * d], 4)
        forget, write = cumax(scores[4 * d : -groups]), 1 - cumax(scores[-groups:])
        both = forget * write
        kept = sigmoid(f) * both + (forget - both)
        c = kept * c + (sigmoid(i) * both + (write - both)) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        yield h


def mgu(p, xs, d):
    h = np.zeros(d)
    for x in xs:
        given = np.split(x @ p["input"] + p["bias"], 2)
        f = sigmoid(given[0] + h @ p["gate"])
        h = (1 - f) * h + f * np.tanh(given[1] + (f * h) @ p["candidate"])
        yield h


def mingru(p, xs, d):
    h = np.zeros(d)
    for x in xs:
        z, fresh = np.split(x @ p["input"] + p["bias"], 2)
        h = (1 - sigmoid(z)) * h + sigmoid(z) * fresh
        yield h
