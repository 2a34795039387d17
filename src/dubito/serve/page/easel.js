// Images to ask about: drawn, chosen, dropped, pasted or picked, then disturbed.

import * as api from "./api.js";
import { waiting } from "./asking.js";
import { Surface } from "./draw.js";
import { listen } from "./files.js";
import { Gallery } from "./gallery.js";
import { paint, png } from "./pixels.js";
import { Sliders } from "./sliders.js";
import * as verdict from "./verdict.js";

const element = (id) => document.getElementById(id);
const DRAWING = { fill: 0.72, centre: "mass", stroke: 0.1 };
const HOW = "Draw, or choose an image or a sample of the gallery.";
const VIEWS = ["seen", "dock-seen"];

export class Easel {
  #file = null; // {blob, pixels}: the image below the strokes, as it came
  #plain = null; // the picture before the sliders
  #frame = null;
  #offers = 0; // images offered so far: a slow one must not replace a later one

  constructor(model, asking) {
    Object.assign(this, { model, asking });
    this.surface = new Surface(element("surface"));
    this.sliders = new Sliders(model, () => this.#send());
    this.gallery = new Gallery(element("groups"), (...picked) => this.#pick(...picked));
    this.#name();
    this.#listen();
  }

  idle() {
    verdict.idle(HOW);
  }

  #name() {
    const digits = this.model.classes.every((name) => /^\d$/.test(name));
    const [, height, width] = this.model.shape;
    element("hint-title").textContent = digits ? "Draw a digit" : "Draw here";
    element("draw-title").textContent = digits ? "Show it a digit, or anything else" : "Show it something";
    element("seen-size").textContent = `: ${width} × ${height} pixels`;
  }

  #listen() {
    const { surface } = this;
    surface.addEventListener("change", () => this.#moved());
    surface.addEventListener("pen", ({ detail }) => verdict.say(detail));
    element("undo").addEventListener("click", () => surface.undo());
    element("clear").addEventListener("click", () => {
      this.sliders.reset();
      surface.clear();
    });
    listen({
      input: element("file"),
      easel: element("easel"),
      active: () => !element("token").open,
      take: (blob, many) => this.#take(blob, `“${blob.name || "image"}”${many > 1 ? `, the first of ${many} files.` : ""}`),
      refuse: (text) => (element("source").textContent = text),
      link: (address) => this.gallery.click(address),
    });
  }

  // A hand moves faster than pictures are shown.
  #moved() {
    waiting(true);
    this.#frame ??= requestAnimationFrame(() => this.#changed());
  }

  #changed() {
    cancelAnimationFrame(this.#frame);
    this.#frame = null;
    const { empty } = this.surface;
    element("hint").hidden = !empty;
    element("clear").disabled = element("undo").disabled = empty;
    this.sliders.clear();
    if (empty) return this.#emptied();
    if (!this.surface.image && this.surface.strokes.length === 1) element("source").textContent = "";
    const [channels, height, width] = this.model.shape;
    this.#plain = this.surface.picture(width, height, channels, { ...DRAWING, ...this.model.drawing });
    return this.#send();
  }

  #emptied() {
    this.#file = this.#plain = null;
    this.asking.forget();
    this.asking.blank();
    this.gallery.release();
    element("source").textContent = "";
    this.idle();
    element("seen").setAttribute("aria-label", "What the model sees: nothing yet");
    for (const canvas of VIEWS.map(element)) canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  }

  #send() {
    if (!this.#plain) return;
    const now = this.sliders.disturbed(this.#plain);
    for (const id of VIEWS) paint(now, element(id));
    element("seen").setAttribute("aria-label", `What the model sees: your image in ${now.width} by ${now.height} pixels`);
    const blob = this.#asItCame() ? this.#file.blob : null;
    this.asking.soon(async () => ({ images: [blob ?? (await png(now))] }));
  }

  // An image goes as it came, unless it was drawn upon or disturbed, or is too large to be sent.
  #asItCame() {
    const { limits } = this.model;
    const fits = this.#file && this.#file.blob.size < 0.9 * limits.max_body_bytes && this.#file.pixels <= limits.max_pixels;
    return fits && this.sliders.atRest && this.surface.strokes.length === 0;
  }

  // There is an answer: the traces may follow.
  answered() {
    if (this.#plain) this.sliders.later(this.#plain);
  }

  failed() {
    this.sliders.clear();
  }

  async #take(blob, source, number = ++this.#offers) {
    waiting(true);
    this.sliders.reset();
    this.gallery.release();
    const image = await createImageBitmap(blob).catch(() => null);
    if (number !== this.#offers) return;
    if (image === null) return this.#unreadable(blob, source);
    this.#file = { blob, pixels: image.width * image.height };
    element("source").textContent = source;
    return this.surface.show(image);
  }

  // The browser can't show it, but the service may know the format, or say what is wrong.
  #unreadable(blob, source) {
    this.surface.clear();
    this.#changed();
    element("source").textContent = `${source} This browser can’t show it.`;
    element("clear").disabled = false;
    if (blob.size > this.model.limits.max_body_bytes) return this.asking.fail(new api.Trouble("too_large"));
    return this.asking.soon(async () => ({ images: [blob] }));
  }

  async #pick(button, image, group, { truth }) {
    const number = ++this.#offers;
    waiting(true);
    const blob = await fetch(image.src).then((response) => response.blob(), () => null);
    if (number !== this.#offers) return;
    if (blob === null) return this.asking.fail(new api.Trouble("unreachable"));
    const right = truth === null ? "none of the classes is right" : `in truth ${truth}`;
    await this.#take(blob, `${group.name}: ${right}.`, number);
    if (number === this.#offers) this.gallery.press(button);
  }
}
