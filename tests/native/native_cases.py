"""What the native tests share: oracle objects to bindings, and the error measure."""

from __future__ import annotations

from dataclasses import dataclass

import exl3_oracle as oracle
import numpy as np

from glm53_kernels import CpuKernels, Expert, ExpertTable, Linear, Picks

ISAS = ("scalar", "avx2", "avx512")
PRECISIONS = ("exact", "fast")


def relative_rms(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


def bound(linear: oracle.Linear) -> Linear:
    return Linear(linear.in_features, linear.out_features, linear.bits, *linear)


def dequant(kernels: CpuKernels, linear: oracle.Linear) -> np.ndarray:
    out = np.full((linear.out_features, linear.in_features), np.nan, np.float32)
    kernels.linear_dequant(bound(linear), out)
    return out


def forward(kernels: CpuKernels, linear: oracle.Linear, x: np.ndarray) -> np.ndarray:
    out = np.full((len(x), linear.out_features), np.nan, np.float32)
    kernels.linear_forward(bound(linear), x, out, rows=len(x))
    return out


def table_of(experts: list[oracle.Expert | None], act_limit: float = 0.0) -> ExpertTable:
    bindings = [
        None if e is None else Expert(bound(e.gate), bound(e.up), bound(e.down)) for e in experts
    ]
    return ExpertTable(bindings, act_limit=act_limit)


@dataclass(frozen=True, slots=True)
class Choice:
    """(expert, row, weight) triples as arrays."""

    expert: np.ndarray
    row: np.ndarray
    weight: np.ndarray

    @staticmethod
    def of(*triples: tuple[int, int, float]) -> Choice:
        expert, row, weight = zip(*triples, strict=True) if triples else ((), (), ())
        return Choice(
            np.array(expert, np.int32), np.array(row, np.int32), np.array(weight, np.float32)
        )

    @property
    def picks(self) -> Picks:
        return Picks(len(self.expert), self.expert, self.row, self.weight)

    def expected(self, experts: list[oracle.Expert], x: np.ndarray, limit: float) -> np.ndarray:
        out = np.zeros_like(x, np.float64)
        for expert, row, weight in zip(self.expert, self.row, self.weight, strict=True):
            y = oracle.expert_forward(experts[expert], x[row : row + 1].astype(np.float64), limit)
            out[row] += weight * y[0]
        return out
