// The mean of differences and its interval, as harness.intervals.estimate has them: strata, Student's t by Welch and Satterthwaite.
"use strict";

uharness.stats = (function () {
  // Stirling's series, after shifting up to where it is exact to rounding
  const logGamma = (x) => {
    let shift = 1;
    for (; x < 20; x += 1) shift *= x;
    const series = 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5) - 1 / (1680 * x ** 7);
    return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series - Math.log(shift);
  };
  // regularised incomplete beta, by its continued fraction (Lentz)
  const beta = (x, a, b) => {
    if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
    const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x));
    if (x > (a + 1) / (a + b + 2)) return 1 - beta(1 - x, b, a);
    const tiny = 1e-300;
    let c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (Math.abs(d) < tiny ? tiny : d);
    let h = d;
    for (let m = 1; m < 500; m++) {
      for (const part of [m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))]) {
        d = 1 + part * d; d = 1 / (Math.abs(d) < tiny ? tiny : d);
        c = 1 + part / c; c = Math.abs(c) < tiny ? tiny : c;
        h *= d * c;
      }
      if (Math.abs(d * c - 1) < 1e-16) break;
    }
    return front * h / a;
  };
  const tail = (t, df) => 0.5 * beta(df / (df + t * t), df / 2, 0.5);
  // the t with P(T > t) = 0.025, by bisection
  const quantile = (df) => {
    let low = 0, high = 1;
    while (tail(high, df) > 0.025) high *= 2;
    for (let i = 0; i < 200 && high - low > 1e-15 * high; i++) {
      const middle = (low + high) / 2;
      if (tail(middle, df) > 0.025) low = middle; else high = middle;
    }
    return (low + high) / 2;
  };
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const estimate = (strata) => {
    if (!strata.length) return { mean: null, why: "no run in common" };
    const means = strata.map((values) => sum(values) / values.length);
    const mean = sum(means) / means.length;
    if (strata.some((values) => values.length < 2)) return { mean, why: "one seed: no interval" };
    const variances = strata.map((values, i) => (new Set(values).size > 1 ? sum(values.map((v) => (v - means[i]) ** 2)) / (values.length - 1) : 0));
    const parts = variances.map((s, i) => [s / strata[i].length / strata.length ** 2, strata[i].length - 1]);
    const total = sum(parts.map(([part]) => part)), weight = sum(parts.map(([part, df]) => part * part / df));
    const half = total > 0 ? quantile(total * total / weight) * Math.sqrt(total) : 0;
    return { mean, low: mean - half, high: mean + half };
  };
  return { estimate, quantile };
})();
