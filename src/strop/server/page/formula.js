// The score, as in search/formula.py, lines (1) to (5) and (7), for one candidate of the server.
//
//   score = (t + alpha Σ w_i s_i) / sqrt(dd + 2 alpha Σ w_i u_i + alpha² w'Gw) + words * word score
//
// t = q·d, dd = d·d, s_i = q·q_i, u_i = d·q_i, g_ij = q_i·q_j, w = softmax(s / temperature).

const HARD_MAX = 1e-12;
const LOWEST = -1;

export function weights(s, temperature) {
  const peak = s.reduce((most, value) => Math.max(most, value), -Infinity);
  const raw = Array.from(s, (value) =>
    temperature < HARD_MAX ? Number(value === peak) : Math.exp((value - peak) / temperature));
  const sum = raw.reduce((total, value) => total + value, 0);
  return raw.map((value) => value / sum);
}

export function score(candidate, { alpha, temperature, words }) {
  return dense(candidate, alpha, temperature) + words * candidate.words;
}

function dense({ t, dd, s, u, g }, alpha, temperature) {
  const n = s.length;
  if (n === 0 || alpha === 0) return dd === 0 ? LOWEST : t;
  const w = weights(s, temperature);
  let numerator = t;
  let squaredNorm = dd;
  for (let i = 0; i < n; i += 1) {
    numerator += alpha * w[i] * s[i];
    squaredNorm += 2 * alpha * w[i] * u[i];
    for (let j = 0; j < n; j += 1) squaredNorm += alpha * alpha * w[i] * w[j] * g[i * n + j];
  }
  return squaredNorm > 1e-9 ? numerator / Math.sqrt(squaredNorm) : LOWEST;
}

/** Return candidates with their scores, best first; of the chunks of a document the best one. */
export function rank(candidates, settings) {
  const seen = new Set();
  return candidates
    .map((candidate) => ({ candidate, score: score(candidate, settings) }))
    .sort((one, other) => other.score - one.score)
    .filter(({ candidate }) => !seen.has(candidate.document) && seen.add(candidate.document));
}
