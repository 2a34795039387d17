// The page: inputs go to the service, and the newest answer to all parts of the page.

import * as api from "./api.js";
import { Asking } from "./asking.js";
import { Bars } from "./bars.js";
import { Easel } from "./easel.js";
import * as fields from "./fields.js";
import { Intervals } from "./interval.js";
import { Kinds } from "./kinds.js";
import { Triangle } from "./triangle.js";
import * as verdict from "./verdict.js";

const element = (id) => document.getElementById(id);

let model = null; // the answer of v1/model
let parts = []; // of the page that show an answer
let asking = null;
let easel = null; // if the model takes images

function show(answer) {
  verdict.show(answer, model);
  parts.forEach((part) => part.show(answer));
  easel?.answered();
}

function blank() {
  parts.forEach((part) => part.clear());
}

function fail(error) {
  if (!(error instanceof api.Trouble)) throw error;
  blank();
  easel?.failed();
  if (error.code === "unauthorized") enter();
  else verdict.trouble(error);
}

function guaranteed({ guarantee }) {
  if (!guarantee) return "";
  const { controls, level, confidence } = guarantee;
  const sure = confidence ? `, with confidence ${verdict.rate(confidence)}` : "";
  const what = controls === "error" ? `an error rate of at most ${verdict.rate(level)} among accepted predictions${sure}` : `that at least ${verdict.rate(level)} of predictions are accepted, on average`;
  return `It guarantees ${what}, for inputs like the validation data.`;
}

function describe() {
  const { name, version, method, policy, task } = model;
  element("model").textContent = `${name} · ${method.name} · ${version}`;
  element("model").title = `Model ${name}, version ${version}, method ${method.name}`;
  document.title = `${name} · dubito`;
  if (task.kind === "regression") element("tagline").textContent = "Predictions with their uncertainty";
  element("policy").textContent = policy ? `A policy decides when to abstain. ${guaranteed(policy)}` : "This model has no policy: it never abstains.";
}

function assemble() {
  const { task, evidence } = model;
  parts = [new Kinds(element("kinds"), element("kinds-about"), model)];
  const triangle = evidence && task.classes.length >= 3;
  element("triangle").hidden = !triangle;
  element("beliefs").hidden = task.kind === "regression";
  element("values").hidden = task.kind !== "regression";
  if (task.kind === "regression") parts.push(new Intervals(element("intervals"), model));
  else parts.push(new Bars(element("bars"), task.classes, evidence));
  if (triangle) {
    parts.push(new Triangle(element("simplex"), element("corners"), element("follow"), element("simplex-reading"), task.classes));
  }
  asking = new Asking(model, { show, fail, blank });
}

// A form in place of the easel.
function rows() {
  for (const id of ["draw", "disturb"]) element(id).hidden = true;
  element("fields").hidden = false;
  element("page").classList.add("form");
  const table = model.inputs.name === "table";
  if (!table) element("fields-title").textContent = "Enter an input";
  const start = () => verdict.idle(table ? "Fill in the form." : "Enter one.");
  start();
  fields.build(element("row"), model, (question, why) => {
    element("row-source").textContent = why;
    if (question) return asking.soon(async () => question);
    if (why) return;
    asking.forget();
    blank();
    start();
  });
}

// The answer at the lower edge of the window, while the headline is out of sight.
function dock() {
  new IntersectionObserver(([entry]) => {
    element("dock").hidden = entry.isIntersecting;
  }).observe(element("headline"));
}

// --- token and start ------------------------------------------------------------------------------

function enter() {
  if (api.token.read()) {
    element("token-why").textContent = "This token was not accepted. Check for a missing or additional character.";
  }
  api.token.forget();
  verdict.trouble(new api.Trouble("unauthorized"));
  if (!element("token").open) element("token").showModal();
}

function build(description) {
  model = description;
  describe();
  assemble();
  if (model.inputs.name === "image") easel = new Easel(model, asking);
  else rows();
  dock();
  document.body.dataset.ready = "";
}

// At the beginning, with a new token, and for a retry.
async function start() {
  try {
    const description = await api.model();
    if (!model) build(description);
    if (!asking.again()) easel?.idle();
    await easel?.gallery.load();
  } catch (error) {
    fail(error);
  }
}

element("token-form").addEventListener("submit", () => {
  api.token.keep(element("token-value").value.trim());
  element("token-value").value = "";
  start();
});
element("again").addEventListener("click", start);

// A link sends no token, so that the document is fetched here and saved.
element("api").addEventListener("click", async (event) => {
  if (!api.token.read()) return;
  event.preventDefault();
  try {
    const text = JSON.stringify(await api.description(), null, 2);
    const file = document.createElement("a");
    file.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    file.download = "openapi.json";
    file.click();
    setTimeout(() => URL.revokeObjectURL(file.href));
  } catch (error) {
    fail(error);
  }
});

start();
