// Questions to the service, and what goes wrong with them in words.

const KEY = "dubito-token";
const RETRIES = 3;

// What is said when there is no answer: [headline, what to do]; between them comes the service's own
// message, where it has one.
const WORDS = {
  unreachable: ["No answer: the service can’t be reached.", "It may have been stopped. Start it again, then try again."],
  busy: ["No answer: the service is busy.", "Many others are asking at the moment. Try again shortly."],
  not_ready: ["No answer: the service is still starting.", "Try again in a moment."],
  timeout: ["No answer: it took too long.", "Try again, or try a smaller image."],
  unauthorized: ["No answer: the service asks for its token.", "Try again to enter it."],
  slow: ["No answer: the image did not arrive in time.", "The connection may be slow. Try a smaller image."],
  bad_image: ["No answer: this is not an image the service can read.", "It reads PNG, JPEG, WebP, BMP, GIF and TIFF."],
  too_large: ["No answer: this is too large.", "Choose a smaller image."],
  bad_input: ["No answer: the input does not fit the model.", "See what is missing, and correct it."],
  bad_answer: ["No answer: what came back makes no sense.", "The page and the service may be of different versions: reload the page."],
};

// The service's messages begin small and have no full stop.
const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? " " : ". ");

export class Trouble extends Error {
  constructor(code, detail = "", wait = 1) {
    const [headline, remedy] = WORDS[code] ?? ["No answer.", "Try again."];
    super((detail ? sentence(detail) : "") + remedy);
    this.code = code;
    this.headline = headline;
    this.wait = wait; // seconds until another try makes sense
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
  const codes = { 401: "unauthorized", 413: "too_large", 503: "busy", 504: "timeout" };
  const code = body?.error?.code ?? codes[response.status] ?? "other";
  throw new Trouble(code, body?.error?.message, Number(response.headers.get("retry-after")) || 1);
}

const pause = (seconds, signal) =>
  new Promise((done, failed) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      failed(new DOMException("a newer question came", "AbortError"));
    });
  });

export const model = () => request("v1/model");
export const gallery = () => request("v1/gallery");
export const description = () => request("openapi.json");

function checked(body, count, classes) {
  const said = body?.predictions;
  const sound = (p) =>
    typeof p?.label === "string" &&
    typeof p.why === "string" &&
    Number.isFinite(p.probability) &&
    Number.isFinite(p.uncertainty?.total) &&
    [p.probabilities, p.belief, p.alpha].every(
      (row, i) => (row === null && i > 0) || (Array.isArray(row) && row.length === classes && row.every(Number.isFinite)),
    );
  if (!Array.isArray(said) || said.length !== count || !said.every(sound)) throw new Trouble("bad_answer");
  return said;
}

// A question is {images: [Blob]} or {json: value}. A busy service is asked again, a few times.
export async function predict(question, classes, signal, waiting = () => {}) {
  const count = question.images?.length ?? 1;
  for (let attempt = 0; ; attempt++) {
    try {
      return checked(await request("v1/predict", { ...posted(question), signal }), count, classes);
    } catch (error) {
      if (error.code !== "busy" || attempt === RETRIES) throw error;
      waiting(error);
      await pause(Math.min(error.wait, 5), signal);
    }
  }
}

function posted(question) {
  if (question.json) {
    return { method: "POST", body: JSON.stringify(question.json), headers: { "content-type": "application/json" } };
  }
  const body = new FormData();
  question.images.forEach((image, i) => body.append("images", image, image.name ?? `image-${i}.png`));
  return { method: "POST", body };
}
