// Density of a Dirichlet distribution on the triangle of three classes, in logarithms.

const LANCZOS = [
  0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
  12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
];

// ln Γ(x) for x > 0
export function logGamma(x) {
  if (x < 0.5) return Math.log(Math.PI / Math.sin(Math.PI * x)) - logGamma(1 - x);
  const z = x - 1;
  let sum = LANCZOS[0];
  for (let i = 1; i < 9; i++) sum += LANCZOS[i] / (z + i);
  const t = z + 7.5;
  return 0.5 * Math.log(2 * Math.PI) + (z + 0.5) * Math.log(t) - t + Math.log(sum);
}

// ln of the density relative to the uniform density, Γ(3) = 2. Three components of a Dirichlet vector,
// rescaled to sum to one, have a Dirichlet distribution with their alpha.
export function logExcess(alpha) {
  const constant = logGamma(alpha[0] + alpha[1] + alpha[2]) - alpha.reduce((sum, a) => sum + logGamma(a), 0) - Math.LN2;
  const [a, b, c] = alpha.map((value) => value - 1);
  return (logX, logY, logZ) => constant + a * logX + b * logY + c * logZ;
}
