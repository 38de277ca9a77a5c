// Numbers become colours: blue is more, orange is less, violet is how much. They differ in brightness too, and for every eye.

const MORE = [37, 99, 235];
const LESS = [217, 119, 6];
const MUCH = [124, 58, 237];

export const MODES = {
  advantage: { label: "advantage", key: "advantage", kind: "signed" },
  mask: { label: "sampled or prompt", key: "is_sampled", kind: "flag", colour: MORE },
  logprob: { label: "log-prob when sampled", key: "behavior_logprob", kind: "amount", of: (value) => -value },
  ratio: { label: "ratio (log)", key: "last_ratio", kind: "signed", of: (value) => Math.log(value) },
  clipped: { label: "clipped", key: "is_clipped", kind: "flag", colour: LESS },
  return: { label: "return", key: "return_", kind: "signed" },
  value: { label: "value", key: "value", kind: "signed" },
  entropy: { label: "entropy", key: "entropy", kind: "amount" },
  reward: { label: "reward share", key: "reward_share", kind: "signed" },
};

export function makeScale(mode, values, sampled) {
  const of = mode.of ?? ((value) => value);
  let most = 0;
  for (let place = 0; place < values.length; place += 1) {
    const value = values[place];
    if (sampled[place] && typeof value === "number") {
      const size = Math.abs(of(value));
      if (Number.isFinite(size)) most = Math.max(most, size);
    }
  }
  return { mode, of, most: most || 1 };
}

export function colourOf(scale, value) {
  const { mode, of, most } = scale;
  if (mode.kind === "flag") return value ? tint(mode.colour, 0.5) : "";
  if (typeof value !== "number") return "";
  const part = of(value) / most;
  if (!Number.isFinite(part) || part === 0) return "";
  if (mode.kind === "amount") return tint(MUCH, 0.6 * Math.min(1, Math.max(0, part)));
  return tint(part > 0 ? MORE : LESS, 0.08 + 0.57 * Math.min(1, Math.abs(part)));
}

export function tint([red, green, blue], alpha) {
  return `rgba(${red}, ${green}, ${blue}, ${alpha.toFixed(3)})`;
}

export function signColour(value) {
  return value >= 0 ? tint(MORE, 0.85) : tint(LESS, 0.9);
}

const LINES = ["#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626", "#475569", "#a16207"];
const LINES_IN_THE_DARK = ["#6b9bff", "#f0a03c", "#34c38f", "#f279b6", "#b197ff", "#4cc9e0", "#a3cf4a", "#ff8078", "#a9b7c9", "#d8ae55"];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function lineColour(place) {
  return (isDark() ? LINES_IN_THE_DARK : LINES)[place % LINES.length];
}
