// The headline: an answer, or "I don't know" and why.

const element = (id) => document.getElementById(id);
const QUIET = 700; // ms without a change before a screen reader is told

// Marks that tell the states apart by their shape.
const MARKS = { accept: "", abstain: "?", plain: "", error: "!", idle: "" };
const STAMPS = { accept: "✓ Accepted", abstain: "? Abstained", plain: "No policy", error: "! Error", idle: "" };

export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 1) return "<1 %";
  if (value < 100 && value > 99) return ">99 %";
  return `${Math.round(value)} %`;
};

// Below the headline, which is the service's own sentence: what bound was missed, and the guess.
function missed(said, { familiar, promise }) {
  const guess = `My best guess would be ${said.label}`;
  if (said.reason === "unfamiliar") {
    // No probability: calibration is learnt from familiar inputs.
    const told = familiar?.measure === "vacuity" && said.vacuity !== null;
    return told ? `Its vacuity is ${said.vacuity.toFixed(2)}; I answer up to ${familiar.value.toFixed(2)}. ${guess}.` : `${guess}.`;
  }
  const kept = promise?.error ? `I am to err in at most ${percent(promise.error)} of my answers. ` : "";
  return `${kept}${guess}, at ${percent(said.probability)}.`;
}

function worded(said, policy) {
  const sure = percent(said.probability);
  const why = said.why.replaceAll("'", "’");
  if (said.decision === "accept") return { state: "accept", headline: `It’s ${said.label}.`, why: `${sure} probable. ${why}` };
  if (said.decision === "abstain") {
    return { state: "abstain", headline: why, why: missed(said, policy ?? {}) };
  }
  return { state: "plain", headline: `Probably ${said.label}, at ${sure}.`, why };
}

let speaking;
function speak(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => (element("live").textContent = text), QUIET);
}

function put({ state, headline, why, tile = MARKS[state], retry = false }) {
  element("verdict").dataset.state = state;
  element("tile").textContent = tile;
  element("tile").classList.toggle("long", tile.length > 2);
  element("stamp").textContent = STAMPS[state];
  element("headline").textContent = headline;
  element("why").textContent = why;
    element("again").hidden = !retry;
  element("dock").dataset.state = state;
  element("dock-headline").textContent = headline;
}

const short = (label) => (label.length <= 6 ? label : "✓");

export function answer(said, policy) {
  const words = worded(said, policy);
  if (said.note) words.why += ` Note: ${said.note}.`; // such as a category that training did not know
  put({ ...words, tile: words.state === "abstain" ? "?" : short(said.label) });
  const doubt = said.vacuity === null ? "" : ` Vacuity ${said.vacuity.toFixed(2)}.`;
  element("dock-doubt").textContent = said.vacuity === null ? "" : `vacuity ${said.vacuity.toFixed(2)}`;
  speak(`${words.headline} ${words.why}${doubt}`);
}

export function trouble(error, retry = true) {
  put({ state: "error", headline: error.headline ?? "No answer.", why: error.message, retry });
  element("dock-doubt").textContent = "";
  speak(`${error.headline ?? "No answer."} ${error.message}`);
}

export function idle(how) {
  put({ state: "idle", headline: "Nothing to look at yet.", why: how });
  element("dock-doubt").textContent = "";
  speak("");
}

export function busy(flag) {
  element("verdict").toggleAttribute("data-busy", flag);
}

export const say = (text) => speak(text);
