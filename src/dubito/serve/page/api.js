// Requests to the service, and its errors in words.

const KEY = "dubito-token";
const RETRIES = 3;

// Code -> [headline, what to do]. The service's own message goes between the two.
const WORDS = {
  unreachable: ["No answer: the service cannot be reached.", "It may have been stopped. Start it again, then try again."],
  busy: ["No answer: the service is busy.", "Try again shortly."],
  timeout: ["No answer: it took too long.", "Try again, or try a smaller image."],
  unauthorized: ["No answer: the service needs its token.", "Try again to enter it."],
  slow: ["No answer: the input did not arrive in time.", "The connection may be slow. Try a smaller image."],
  too_large: ["No answer: this is too large.", "Choose a smaller image."],
  bad_input: ["No answer: the service cannot read this input.", "Change it, then try again."],
  bad_answer: ["No answer: the response is not valid.", "The page and the service may have different versions: reload the page."],
  no_prediction: ["No answer: the model has no prediction for this input.", "Try another input."],
};

const CODES = {
  401: "unauthorized", 408: "slow", 413: "too_large", 415: "bad_input", 422: "bad_input",
  429: "busy", 502: "unreachable", 503: "busy", 504: "timeout",
};

// Messages of the service start in lower case and have no period.
const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? " " : ". ");

export class Trouble extends Error {
  constructor(code, detail = "", wait = 1) {
    const [headline, remedy] = WORDS[code] ?? ["No answer.", "Try again."];
    super((detail ? sentence(detail) : "") + remedy);
    this.code = code;
    this.headline = headline;
    this.wait = wait; // seconds before a retry
  }
}

export const token = {
  read: () => sessionStorage.getItem(KEY),
  keep: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

async function request(path, options = {}) {
  const headers = { accept: "application/json", ...options.headers };
  if (token.read()) headers.authorization = `Bearer ${token.read()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("unreachable");
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response.ok) throw new Trouble("bad_answer");
  }
  if (response.ok) return body;
  const detail = typeof body?.detail === "string" ? body.detail : ""; // a proxy sends none
  throw new Trouble(CODES[response.status] ?? "other", detail, Number(response.headers.get("retry-after")) || 1);
}

const pause = (seconds, signal) =>
  new Promise((done, failed) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      failed(new DOMException("a newer input replaced this one", "AbortError"));
    });
  });

export const model = () => request("v1/model");
export const gallery = () => request("v1/gallery");
export const description = () => request("openapi.json");

const number = (value) => (value === "Infinity" || value === "-Infinity" ? Number(value) : value);

// Values of one column for each target: "lower", or "lower.<name>" with several targets.
function targets(row, column, names) {
  const keys = names.length === 1 ? [column] : names.map((name) => `${column}.${name}`);
  return keys.every((key) => key in row) ? keys.map((key) => number(row[key])) : null;
}

// A row of the response with lists in the order of the classes or targets, and null for what it lacks.
function answer(row, { task }) {
  if (row?.error) throw new Trouble("no_prediction", row.error);
  const names = task.classes ?? task.names;
  const list = (column) => (row[column] ? names.map((name) => row[column][name]) : null);
  const numbers = (values) => Array.isArray(values) && values.every((value) => typeof value === "number" && !Number.isNaN(value));
  const found = { ...row, accepted: row.accepted ?? null, reason: row.reason ?? null, vacuity: row.vacuity ?? null };
  let valid = [row.total, row.aleatoric, row.epistemic].every(Number.isFinite);
  if (task.kind === "classification") {
    Object.assign(found, { probs: list("probs"), belief: list("belief"), alpha: list("alpha") });
    valid &&= typeof row.prediction === "string" && Number.isFinite(row.probability) && numbers(found.probs);
    valid &&= [found.belief, found.alpha].every((values) => values === null || numbers(values));
  } else {
    const [values, lower, upper] = ["prediction", "lower", "upper"].map((column) => targets(row, column, names));
    Object.assign(found, { values, interval: lower && upper ? { lower, upper } : null });
    valid &&= numbers(values) && (found.interval === null || (numbers(lower) && numbers(upper)));
  }
  if (!valid) throw new Trouble("bad_answer");
  return found;
}

function posted(question) {
  if (question.json) {
    return { method: "POST", body: JSON.stringify(question.json), headers: { "content-type": "application/json" } };
  }
  const body = new FormData();
  question.images.forEach((image, i) => body.append("images", image, image.name ?? `image-${i}.png`));
  return { method: "POST", body };
}

// A question is {images: [Blob]} or {json: value}. A busy service is asked again a few times.
export async function predict(question, model, signal, waiting = () => {}) {
  const path = model.evidence ? "v1/predict?evidence=true" : "v1/predict";
  for (let attempt = 0; ; attempt++) {
    try {
      const rows = (await request(path, { ...posted(question), signal }))?.predictions;
      if (!Array.isArray(rows) || rows.length !== (question.images?.length ?? 1)) throw new Trouble("bad_answer");
      return rows.map((row) => answer(row ?? {}, model));
    } catch (error) {
      if (error.code !== "busy" || attempt === RETRIES) throw error;
      waiting(error);
      await pause(Math.min(error.wait, 5), signal);
    }
  }
}
