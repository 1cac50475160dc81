#!/usr/bin/env python3
"""Values of independent packages for the ratios of the crate `backtest`.

    pip install empyrical-reloaded==0.7.1 quantstats==0.0.86 arch==8.0.0 scipy
    scripts/ratios-fixture.py > backtest/tests/data/ratios.json

Two return series with fat tails and some memory, 400 daily bars, drawn from a fixed seed and rounded, so that the numbers
in the file are the inputs exactly. Each value says which package it is from; what is undefined here by definition and
made 0 or infinite there is left out.
"""

import json
import sys
import warnings

import empyrical
import numpy as np
import pandas as pd
import quantstats
from arch.bootstrap import optimal_block_length
from scipy import stats

warnings.filterwarnings("ignore")
PERIODS = 252


def series(seed: int, mean: float, memory: float) -> np.ndarray:
    """Returns of 400 bars, rounded to 1e-6."""
    rng = np.random.default_rng(seed)
    draws = 0.01 * rng.standard_t(5, 400)
    out = np.empty_like(draws)
    last = 0.0
    for i, draw in enumerate(draws):
        last = memory * last + draw
        out[i] = round(mean + last, 6)
    return out


def deflated(returns: np.ndarray, trials: int, variance: float) -> dict:
    """The formulas of Bailey and Lopez de Prado (2014) on SciPy's moments and distribution."""
    ratio = returns.mean() / returns.std(ddof=1)
    gamma = np.euler_gamma
    luck = (1 - gamma) * stats.norm.ppf(1 - 1 / trials) + gamma * stats.norm.ppf(1 - 1 / (trials * np.e))
    threshold = np.sqrt(variance) * luck
    skewness, kurtosis = stats.skew(returns), stats.kurtosis(returns, fisher=False)
    spread = np.sqrt(1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2)
    probability = stats.norm.cdf((ratio - threshold) * np.sqrt(len(returns) - 1) / spread)
    return {
        "trials": trials,
        "variance": variance,
        "threshold_per_bar": threshold,
        "probability": probability,
    }


def values(returns: np.ndarray, benchmark: np.ndarray) -> dict:
    index = pd.date_range("2020-01-01", periods=len(returns), freq="D")
    r, b = pd.Series(returns, index), pd.Series(benchmark, index)
    annual = {"period": "daily", "annualization": PERIODS}
    greeks = quantstats.stats.greeks(r, b, periods=PERIODS, prepare_returns=False)
    # With the start equity as the first peak, which quantstats leaves out.
    start = pd.concat([pd.Series([0.0], [index[0] - pd.Timedelta(days=1)]), r])
    equity = (1 + start).cumprod()
    drawdowns = quantstats.stats.drawdown_details(equity / equity.cummax() - 1)
    return {
        "empyrical": {
            "cagr": empyrical.annual_return(r, **annual),
            "annual_volatility": empyrical.annual_volatility(r, **annual),
            "sharpe": empyrical.sharpe_ratio(r, **annual),
            "sortino": empyrical.sortino_ratio(r, **annual),
            "calmar": empyrical.calmar_ratio(r, **annual),
            "omega": empyrical.omega_ratio(r, annualization=PERIODS),
            "max_drawdown": empyrical.max_drawdown(r),
            "beta": empyrical.beta(r, b),
            # Compounded, (1 + alpha per bar)^252 - 1.
            "compounded_alpha": empyrical.alpha(r, b, **annual),
        },
        "quantstats": {
            "sharpe": quantstats.stats.sharpe(r, periods=PERIODS),
            "sortino": quantstats.stats.sortino(r, periods=PERIODS),
            "volatility": quantstats.stats.volatility(r, periods=PERIODS, prepare_returns=False),
            "omega": quantstats.stats.omega(r, periods=PERIODS),
            "max_drawdown": quantstats.stats.max_drawdown(equity),
            "alpha": greeks["alpha"],
            "beta": greeks["beta"],
            "drawdowns": len(drawdowns),
            "average_drawdown": drawdowns["max drawdown"].mean() / 100,
            # Bars under water: one less than from the peak to the recovery.
            "average_drawdown_days": drawdowns["days"].mean(),
            "longest_drawdown_days": int(drawdowns["days"].max()),
        },
        "arch": {"stationary_block": float(optimal_block_length(returns)["stationary"].iloc[0])},
        "scipy": deflated(returns, trials=20, variance=0.0009),
    }


def trades(profits: list) -> dict:
    """Trade statistics by quantstats, which takes any series of gains and losses."""
    p = pd.Series(profits, pd.date_range("2020-01-01", periods=len(profits), freq="D"))
    win_rate = quantstats.stats.win_rate(p, prepare_returns=False)
    win = quantstats.stats.avg_win(p, prepare_returns=False)
    loss = quantstats.stats.avg_loss(p, prepare_returns=False)
    return {
        "profits": profits,
        "win_rate": win_rate,
        "profit_factor": quantstats.stats.profit_factor(p, prepare_returns=False),
        "expectancy": win_rate * win + (1 - win_rate) * loss,
    }


def main() -> None:
    one, two = series(1, 0.0025, 0.2), series(2, 0.0012, 0.0)
    mixed = np.round(0.5 * two + one, 6)
    cases = [(one, two), (two, one), (mixed, two)]
    out = {
        "periods": PERIODS,
        "packages": {
            "empyrical-reloaded": empyrical.__version__,
            "quantstats": quantstats.__version__,
        },
        "cases": [
            {"returns": r.tolist(), "benchmark": b.tolist(), "expected": values(r, b)} for r, b in cases
        ],
        "trades": trades([120.5, -80.25, 33.0, -12.5, 410.0, -95.0, -7.75, 64.0]),
    }
    json.dump(out, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
