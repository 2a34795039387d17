// Noise and rotation of an image, and the uncertainty along them.

import * as api from "./api.js";
import { scale } from "./kinds.js";
import { noisy, png, turned } from "./pixels.js";
import { Trace } from "./trace.js";

const element = (id) => document.getElementById(id);
const STILL = 350; // ms of rest before the traces are requested
const STEPS = 13; // of a trace

const SLIDERS = {
  noise: { word: (value) => value.toFixed(2), apply: (picture, value) => noisy(picture, value) },
  turn: { word: (value) => `${value}°`, apply: (picture, value) => turned(picture, value) },
};
const ORDER = ["turn", "noise"]; // noise is not rotated

export class Sliders {
  #rest;
  #control = null;

  constructor(model, moved) {
    this.model = model;
    [this.scale] = scale(model);
    this.traces = Object.entries(SLIDERS).map(([id, { word }]) => {
      const trace = new Trace(element(`${id}-trace`), element(`${id}-reading`), element(id), word);
      element(id).addEventListener("input", () => {
        this.#update();
        moved();
      });
      return { id, trace, of: null };
    });
    this.#update();
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
    this.#update();
  }

  clear() {
    clearTimeout(this.#rest);
    this.#control?.abort();
    for (const one of this.traces) {
      one.of = null;
      one.trace.clear();
    }
  }

  // Request the traces of an image once the user rests.
  later(picture) {
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => this.#sweep(picture), STILL);
  }

  #update() {
    for (const { id, trace } of this.traces) {
      element(`${id}-value`).textContent = SLIDERS[id].word(Number(element(id).value));
      trace.mark();
    }
  }

  async #sweep(picture) {
    this.#control?.abort();
    const { signal } = (this.#control = new AbortController());
    const { limits, shape } = this.model;
    const count = Math.min(STEPS, limits.max_inputs);
    const bytes = count * shape.reduce((product, size) => product * size, 1);
    if (count < 2 || bytes > limits.max_body / 2) return; // large images have no traces
    try {
      for (const one of this.traces) await this.#trace(one, picture, count, signal);
    } catch (error) {
      // The headline reports problems of the service.
      if (error.name !== "AbortError" && !(error instanceof api.Trouble)) throw error;
    }
  }

  // A trace depends on the image and the other slider, not on its own.
  async #trace(one, picture, count, signal) {
    const fixed = { ...this.values, [one.id]: null };
    const key = JSON.stringify(fixed);
    if (one.of?.picture === picture && one.of.key === key) return;
    const values = one.trace.values(count);
    const images = await Promise.all(values.map((value) => png(this.disturbed(picture, { ...fixed, [one.id]: value }))));
    const answers = await api.predict({ images }, this.model, signal);
    one.of = { picture, key };
    one.trace.show(
      answers.map((answer, i) => this.#point(answer, values[i])),
      answers[0].vacuity === null ? "Uncertainty" : "Vacuity",
    );
  }

  #point({ vacuity, total, accepted }, value) {
    return { value, doubt: vacuity ?? total / this.scale, accepted };
  }
}
