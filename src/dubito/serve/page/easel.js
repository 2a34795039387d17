// Image inputs: drawn, chosen, dropped, pasted or from the gallery, then disturbed.

import * as api from "./api.js";
import { waiting } from "./asking.js";
import { Surface } from "./draw.js";
import { listen } from "./files.js";
import { Gallery } from "./gallery.js";
import { paint, png } from "./pixels.js";
import { Sliders } from "./sliders.js";
import * as verdict from "./verdict.js";

const element = (id) => document.getElementById(id);
const DRAWING = { fill: 0.72, center: "mass", stroke: 0.1 };
const LARGEST = 64; // pixels of a side up to which gray images can be drawn
const VIEWS = ["seen", "dock-seen"];

export class Easel {
  #file = null; // {blob, width, height} of the image below the strokes
  #plain = null; // input of the model, before the sliders
  #frame = null;
  #offers = 0; // number of images so far: one that loads slowly must not replace a later one

  constructor(model, asking) {
    Object.assign(this, { model, asking });
    const { size, mode } = model.inputs;
    this.drawable = model.drawing != null || (mode === "L" && Math.max(...size) <= LARGEST);
    this.surface = new Surface(element("surface"), this.drawable);
    this.sliders = new Sliders(model, () => this.#send());
    this.gallery = new Gallery(element("groups"), (...picked) => this.#pick(...picked));
    this.#name();
    this.#listen();
  }

  idle() {
    verdict.idle(this.drawable ? "Draw something, or choose an image." : "Choose an image.");
  }

  #name() {
    const digits = this.model.task.classes?.every((name) => /^\d$/.test(name));
    const [, height, width] = this.model.shape;
    element("seen-size").textContent = `${width} × ${height} pixels`;
    if (this.drawable) {
      element("hint-title").textContent = digits ? "Draw a digit" : "Draw here";
      element("draw-title").textContent = digits ? "Draw a digit, or anything else" : "Draw something";
      return;
    }
    element("draw").classList.add("photo");
    element("draw-title").textContent = "Image";
    element("hint-title").textContent = "Choose an image";
    element("hint-more").textContent = "or drop or paste one";
    element("surface").removeAttribute("tabindex");
    element("surface").setAttribute("role", "img");
    element("surface").setAttribute("aria-label", "No image yet");
    element("surface").removeAttribute("aria-describedby");
    for (const id of ["undo", "draw-help"]) element(id).hidden = true;
    element("clear").textContent = "Remove";
  }

  #listen() {
    const { surface } = this;
    surface.addEventListener("change", () => this.#moved());
    surface.addEventListener("pen", ({ detail }) => verdict.say(detail));
    if (!this.drawable) element("surface").addEventListener("click", () => element("file").click());
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

  // A pointer moves more often than the screen is painted.
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
    element("seen").setAttribute("aria-label", "Input of the model: none yet");
    for (const canvas of VIEWS.map(element)) canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  }

  #send() {
    if (!this.#plain) return;
    const now = this.sliders.disturbed(this.#plain);
    for (const id of VIEWS) paint(now, element(id));
    element("seen").setAttribute("aria-label", `Input of the model: your image in ${now.width} by ${now.height} pixels`);
    const blob = this.#isSendable() ? this.#file.blob : null;
    this.asking.soon(async () => ({ images: [blob ?? (await png(now))] }));
  }

  // A file is sent as it is, unless it was drawn on or disturbed, or is too large.
  #isSendable() {
    if (!this.#file || !this.sliders.atRest || this.surface.strokes.length) return false;
    const { blob, width, height } = this.#file;
    const { max_body, max_pixels } = this.model.limits;
    return blob.size < 0.9 * max_body && width * height <= max_pixels;
  }

  // There is an answer: traces may follow.
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
    this.#file = { blob, width: image.width, height: image.height };
    if (!this.drawable) element("surface").setAttribute("aria-label", `Image: ${source}`);
    element("source").textContent = source;
    return this.surface.show(image);
  }

  // The service may read it, or report what is wrong.
  #unreadable(blob, source) {
    this.surface.clear();
    this.#changed();
    element("source").textContent = `${source} This browser cannot show it.`;
    element("clear").disabled = false;
    if (blob.size > this.model.limits.max_body) return this.asking.fail(new api.Trouble("too_large"));
    return this.asking.soon(async () => ({ images: [blob] }));
  }

  async #pick(button, image, group, { truth }) {
    const number = ++this.#offers;
    waiting(true);
    const blob = await fetch(image.src).then((response) => response.blob(), () => null);
    if (number !== this.#offers) return;
    if (blob === null) return this.asking.fail(new api.Trouble("unreachable"));
    const right = truth === null ? "none of the classes" : `class ${truth}`;
    await this.#take(blob, `${group.name}: ${right}.`, number);
    if (number === this.#offers) this.gallery.press(button);
  }
}
