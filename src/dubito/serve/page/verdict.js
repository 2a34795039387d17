// The headline: an answer, "I’m not sure" between classes, or "I don’t know" and the reason.

const element = (id) => document.getElementById(id);
const QUIET = 700; // ms without a change before screen readers get the answer

// Marks that tell the states apart without color.
const MARKS = { accept: "✓", abstain: "?", plain: "", error: "!", idle: "" };
const STAMPS = { accept: "✓ Accepted", abstain: "? Abstained", plain: "No policy", error: "! Error", idle: "" };

export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 1) return "<1%";
  if (value < 100 && value > 99) return ">99%";
  return `${Math.round(value)}%`;
};

// A chosen share, such as an error rate, with its digits.
export const rate = (share) => `${Number((100 * share).toPrecision(4))}%`;

// A number in about three digits of `scale`, without an exponent for usual sizes.
export const rounded = (value, scale = value) => {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const exponent = scale === 0 ? 0 : Math.floor(Math.log10(Math.abs(scale)));
  if (Math.abs(exponent) > 6) return value.toExponential(2).replace("-", "−");
  const text = value.toFixed(Math.max(0, 2 - exponent));
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
};

const UNKNOWN = "I don’t know";
const KINDS = ["total", "aleatoric", "epistemic"];
const name = (score) => (KINDS.includes(score) ? `${score} uncertainty` : `${score.replaceAll("_", " ")} score`);

// The OOD threshold, if it can reject anything.
const limit = ({ policy }) => (Number.isFinite(policy?.ood_threshold?.value) ? policy.ood_threshold : null);

// The OOD score of an input beside its limit; only some scores are in the response.
function familiarity(answer, model) {
  const { score, higher, value } = limit(model);
  const own = Number.isFinite(answer[score]) ? `, ${rounded(answer[score], value)},` : "";
  const place = answer.reason !== "unfamiliar" ? "within" : higher === "confidence" ? "below" : "above";
  return `Its ${name(score)}${own} is ${place} the limit of ${rounded(value)}.`;
}

// The prediction in words: for the tile, as a guess, and its probability, set or interval.
function predicted(answer, { task, levels: [level] }) {
  if (task.kind === "classification") {
    const set = answer.set ? ` ${rate(level)} set: ${answer.set.join(", ")}.` : "";
    return { short: answer.prediction, guess: answer.prediction, detail: `Probability ${percent(answer.probability)}.${set}` };
  }
  const one = task.names.length === 1;
  const guess = task.names.map((target, i) => (one ? "" : `${target} `) + rounded(answer.values[i], task.std[i])).join(", ");
  if (!answer.interval || !one) return { short: "", guess, detail: "" };
  const [low, high] = [answer.interval.lower[0], answer.interval.upper[0]].map((end) => rounded(end, task.std[0]));
  return { short: "", guess, detail: `${level ? `${rate(level)} interval` : "Calibrated interval"}: ${low} to ${high}.` };
}

function rivals({ probs }, classes) {
  const [first, second] = probs.map((_, i) => i).sort((a, b) => probs[b] - probs[a]);
  return `${classes[first]} or ${classes[second]}`;
}

// What the policy controls, as the reason of an abstention.
function goal({ policy }) {
  const { controls, level } = policy.guarantee ?? {};
  if (controls === "error") return `Not certain enough for an error rate of at most ${rate(level)}.`;
  return "Not certain enough for the policy.";
}

// Whether the threshold is an infinity that no score passes; infinities are text.
const acceptsNothing = ({ policy: { threshold } }) => threshold.value === (threshold.higher === "confidence" ? "inf" : "-inf");

function abstention(answer, model, { guess, detail }) {
  if (answer.reason === "unfamiliar") return [`${UNKNOWN}: not like anything seen in training.`, familiarity(answer, model)];
  const best = `Best guess: ${guess}.`;
  if (answer.reason === "out_of_range") return [`${UNKNOWN}: a value is out of range.`, best];
  if (acceptsNothing(model)) {
    const { samples } = model.policy.validation ?? {};
    const cause = model.policy.max_width ? "No interval is narrow enough." : `${samples ?? "The"} calibration samples could not show the error rate it is to guarantee.`;
    return [`${UNKNOWN}: the policy accepts nothing.`, `${cause} ${best} ${detail}`];
  }
  const classes = model.task.classes;
  const doubt = classes ? `I’m not sure: ${rivals(answer, classes)}.` : `${UNKNOWN}: the uncertainty is too high.`;
  return [doubt, `${goal(model)} ${best} ${detail}`];
}

function worded(answer, model) {
  const found = predicted(answer, model);
  const value = model.task.classes ? `It’s ${found.guess}.` : model.task.names.length === 1 ? `${model.task.names[0]}: ${found.guess}` : found.guess;
  if (answer.accepted === null) return { state: "plain", headline: model.task.classes ? `Probably ${found.guess}.` : value, why: `${found.detail} There is no policy that could abstain.` };
  if (answer.accepted) {
    const familiar = limit(model) ? `Familiar: ${familiarity(answer, model).replace("Its", "its")}` : "";
    return { state: "accept", headline: value, why: `${found.detail} ${familiar}`, tile: found.short };
  }
  const [headline, why] = abstention(answer, model, found);
  return { state: "abstain", headline, why };
}

let speaking;
function speak(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => (element("live").textContent = text), QUIET);
}

function put({ state, headline, why, tile = "", retry = false }) {
  const mark = tile && tile.length <= 6 ? tile : MARKS[state];
  element("verdict").dataset.state = state;
  element("tile").textContent = mark;
  element("tile").classList.toggle("long", mark.length > 2);
  element("stamp").textContent = STAMPS[state];
  element("headline").textContent = headline;
  element("why").textContent = why.trim();
  element("again").hidden = !retry;
  element("dock").dataset.state = state;
  element("dock-headline").textContent = headline;
}

export function show(answer, model) {
  const words = worded(answer, model);
  if (answer.note) words.why += ` Note: ${answer.note}.`; // such as a category that training did not have
  put(words);
  const vacuity = answer.vacuity === null ? "" : `vacuity ${answer.vacuity.toFixed(2)}`;
  element("dock-doubt").textContent = vacuity;
  speak([words.headline, words.why, vacuity].join(" "));
}

export function trouble(error, retry = true) {
  const headline = error.headline ?? "No answer.";
  put({ state: "error", headline, why: error.message, retry });
  element("dock-doubt").textContent = "";
  speak(`${headline} ${error.message}`);
}

export function idle(how) {
  put({ state: "idle", headline: "No input yet.", why: how });
  element("dock-doubt").textContent = "";
  speak("");
}

export function busy(flag) {
  element("verdict").toggleAttribute("data-busy", flag);
}

export const say = (text) => speak(text);
