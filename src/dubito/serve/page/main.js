// The page: what is shown goes to the service, and its newest answer to all parts.

import * as api from "./api.js";
import { Asking } from "./asking.js";
import { Bars } from "./bars.js";
import { Easel } from "./easel.js";
import * as fields from "./fields.js";
import { Kinds } from "./kinds.js";
import { Triangle } from "./triangle.js";
import * as verdict from "./verdict.js";

const element = (id) => document.getElementById(id);

let model = null; // what /v1/model said
let parts = []; // of the answer: bars, kinds of uncertainty, triangle
let asking = null;
let easel = null; // where the model takes images

function show(said) {
  verdict.answer(said, model.policy);
  element("triangle").hidden = !said.alpha || model.classes.length < 3;
  parts.forEach((part) => part.show(said));
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

function describe() {
  const { name, version, method, policy, calibrated } = model;
  element("model").textContent = `${name} · ${method} · ${version}`;
  element("model").title = `Model ${name}, version ${version}, trained with ${method}${calibrated ? ", calibrated" : ""}`;
  document.title = `dubito · ${name}`;
  element("policy").textContent = policy?.text ?? "This model has no policy: it always answers.";
}

function assemble() {
  const { classes, evidential, scales } = model;
  parts = [
    new Bars(element("bars"), classes, evidential),
    new Kinds(element("kinds"), element("kinds-about"), scales, classes.length),
  ];
  element("triangle").hidden = !evidential || classes.length < 3;
  if (classes.length >= 3) {
    parts.push(new Triangle(element("simplex"), element("corners"), element("follow"), element("simplex-reading"), classes));
  }
  asking = new Asking(classes.length, { show, fail, blank });
}

// A form in place of the easel, for what is no image.
function rows() {
  for (const id of ["draw", "disturb"]) element(id).hidden = true;
  element("fields").hidden = false;
  if (!model.columns) element("fields-title").textContent = "Give an input";
  verdict.idle("Fill in the form.");
  fields.build(element("row"), model, (question, why) => {
    element("row-source").textContent = why;
    if (question) asking.soon(async () => question);
  });
}

// The answer in small at the lower edge, while the headline is out of sight.
function dock() {
  new IntersectionObserver(([entry]) => {
    element("dock").hidden = entry.isIntersecting;
  }).observe(element("headline"));
}

// --- token and start ------------------------------------------------------------------------------

function enter() {
  if (api.token.read()) {
    element("token-why").textContent = "This token was not accepted. Look for a missing or additional character.";
  }
  api.token.forget();
  verdict.trouble(new api.Trouble("unauthorized"));
  if (!element("token").open) element("token").showModal();
}

function build(told) {
  model = told;
  describe();
  assemble();
  if (model.kind === "image") easel = new Easel(model, asking);
  else rows();
  dock();
  document.body.dataset.ready = "";
}

// The first time, with a new token, and after trouble.
async function start() {
  try {
    const told = await api.model();
    if (!model) build(told);
    if (!asking.again()) easel?.idle();
    await easel?.gallery.hang();
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

// A link carries no token: where one is needed, what it leads to is asked for here, and saved.
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
