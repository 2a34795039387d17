// Noise and rotation: what they make of a picture, and how doubt moves with them.

import * as api from "./api.js";
import { noisy, png, turned } from "./pixels.js";
import { Trace } from "./trace.js";

const element = (id) => document.getElementById(id);
const STILL = 350; // ms of rest before the traces are asked for
const STEPS = 13; // of a trace

const SLIDERS = {
  noise: { word: (value) => value.toFixed(2), apply: (picture, value) => noisy(picture, value) },
  turn: { word: (value) => `${value}°`, apply: (picture, value) => turned(picture, value) },
};
const ORDER = ["turn", "noise"]; // a picture is turned first: noise does not turn with it

export class Sliders {
  #rest;
  #control = null;

  constructor(model, moved) {
    this.model = model;
    this.traces = Object.entries(SLIDERS).map(([id, { word }]) => {
      const trace = new Trace(element(`${id}-trace`), element(`${id}-reading`), element(id), word);
      element(id).addEventListener("input", () => {
        this.#tell();
        moved();
      });
      return { id, trace, of: null };
    });
    this.#tell();
  }

  get values() {
    return Object.fromEntries(ORDER.map((id) => [id, Number(element(id).value)]));
  }

  get atRest() {
    return Object.values(this.values).every((value) => value === 0);
  }

  disturbed(picture, values = this.values) {
    return ORDER.reduce((made, id) => SLIDERS[id].apply(made, values[id]), picture);
  }

  reset() {
    for (const id of ORDER) element(id).value = 0;
    this.#tell();
  }

  clear() {
    clearTimeout(this.#rest);
    this.#control?.abort();
    for (const one of this.traces) {
      one.of = null;
      one.trace.clear();
    }
  }

  // Ask for the traces of a picture once the hand rests.
  later(picture) {
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => this.#sweep(picture), STILL);
  }

  #tell() {
    for (const { id, trace } of this.traces) {
      element(`${id}-value`).textContent = SLIDERS[id].word(Number(element(id).value));
      trace.mark();
    }
  }

  async #sweep(picture) {
    this.#control?.abort();
    const { signal } = (this.#control = new AbortController());
    const count = Math.min(STEPS, this.model.limits.max_batch);
    if (count < 2) return;
    try {
      for (const one of this.traces) await this.#trace(one, picture, count, signal);
    } catch (error) {
      // The traces are an extra: what is wrong with the service, the headline tells.
      if (error.name !== "AbortError" && !(error instanceof api.Trouble)) throw error;
    }
  }

  // A trace depends on the picture and the other sliders: moving its own leaves it as it is.
  async #trace(one, picture, count, signal) {
    const held = { ...this.values, [one.id]: null };
    const key = JSON.stringify(held);
    if (one.of?.picture === picture && one.of.key === key) return;
    const values = one.trace.values(count);
    const images = await Promise.all(values.map((value) => png(this.disturbed(picture, { ...held, [one.id]: value }))));
    const said = await api.predict({ images }, this.model.classes.length, signal);
    one.of = { picture, key };
    one.trace.show(
      said.map((answer, i) => this.#point(answer, values[i])),
      said[0].vacuity === null ? "Uncertainty" : "Vacuity",
    );
  }

  #point(said, value) {
    const doubt = said.vacuity ?? said.uncertainty.total / this.model.scales.total;
    return { value, doubt, accepted: said.decision === null ? null : said.decision === "accept" };
  }
}
