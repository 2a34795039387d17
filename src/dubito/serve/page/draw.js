// The canvas: strokes by mouse, touch, pen or keyboard, on an image if there is one.

import { canvasOf, centeredByMass, pictureOf, resized } from "./pixels.js";

const SIDE = 640; // pixels of the canvas
const INK = "#f4f6fa";
const PEN = 0.085; // widths and lengths are shares of the side
const STEP = 1 / 32; // of the pen per key
const FINE = 8; // pixels of a drawing per pixel of the model, before they are averaged
const SMALLEST = 0.2; // smaller drawings are not enlarged to the full size
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function trace(context, stroke, place, width) {
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = width;
  context.beginPath();
  const points = stroke.map(place);
  context.moveTo(...points[0]);
  // Curves through the middles of segments: a fast hand gives few points.
  for (let i = 1; i < points.length - 1; i++) {
    const middle = [0, 1].map((axis) => (points[i][axis] + points[i + 1][axis]) / 2);
    context.quadraticCurveTo(...points[i], ...middle);
  }
  context.lineTo(...points.at(-1));
  context.stroke();
}

export class Surface extends EventTarget {
  // drawable: whether strokes can be drawn; otherwise the canvas only shows images
  constructor(canvas, drawable) {
    super();
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.strokes = [];
    this.image = null; // below the strokes
    this.pen = [0.5, 0.5];
    this.down = false; // whether the pen of the keyboard is down
    if (drawable) this.#listen();
    this.paint();
  }

  get empty() {
    return !this.image && this.strokes.length === 0;
  }

  clear() {
    this.strokes = [];
    this.image = null;
    this.#lift();
    this.#changed();
  }

  undo() {
    if (this.strokes.length) this.strokes.pop();
    else this.image = null;
    this.#lift();
    this.#changed();
  }

  // Show an image, on which strokes can be drawn.
  show(image) {
    this.strokes = [];
    this.image = image;
    this.#lift();
    this.#changed();
  }

  // Input of the model. A drawing is moved and scaled like the training data, with strokes of one
  // width whatever its size.
  picture(width, height, channels, { fill, center, stroke }) {
    if (this.image) return this.#covered(width, height, channels);
    const fine = canvasOf(FINE * width, FINE * height);
    const context = fine.getContext("2d", { willReadFrequently: true });
    const side = FINE * Math.min(width, height);
    const points = this.strokes.flat();
    const [low, high] = [Math.min, Math.max].map((end) => [0, 1].map((axis) => end(...points.map((p) => p[axis]))));
    const extent = Math.max(high[0] - low[0], high[1] - low[1], SMALLEST);
    const scale = (side * Math.max(fill - stroke, 0.1)) / extent;
    const middle = [0, 1].map((axis) => (low[axis] + high[axis]) / 2);
    const place = ([x, y]) => [fine.width / 2 + (x - middle[0]) * scale, fine.height / 2 + (y - middle[1]) * scale];
    context.strokeStyle = "#fff";
    for (const one of this.strokes) trace(context, one, place, stroke * side);
    const gray = resized(pictureOf(fine, fine.width, fine.height, 1, "#000"), width, height);
    const { planes } = center === "mass" ? centeredByMass(gray) : gray;
    return { width, height, planes: Array.from({ length: channels }, () => planes[0]) };
  }

  // The image with its strokes, resized like in the service.
  #covered(width, height, channels) {
    const { image } = this;
    // A large photograph is reduced by the browser first, which is faster.
    const shrink = Math.min(1, Math.max((4 * width) / image.width, (4 * height) / image.height));
    const [w, h] = [Math.max(1, Math.round(image.width * shrink)), Math.max(1, Math.round(image.height * shrink))];
    const wide = this.strokes.length ? Math.max(w, FINE * width) : w;
    const tall = this.strokes.length ? Math.max(h, FINE * height) : h;
    const [left, top, across, down] = this.#frame();
    const canvas = canvasOf(wide, tall);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingEnabled = wide <= image.width;
    context.fillStyle = "#fff";
    context.fillRect(0, 0, wide, tall);
    context.drawImage(image, 0, 0, wide, tall);
    context.strokeStyle = INK;
    const place = ([x, y]) => [((x - left) / across) * wide, ((y - top) / down) * tall];
    for (const one of this.strokes) trace(context, one, place, (PEN / Math.max(across, down)) * Math.max(wide, tall));
    return resized(pictureOf(canvas, wide, tall, channels), width, height);
  }

  // Place of the image on the canvas, in its own proportions.
  #frame() {
    const { width, height } = this.image;
    const longer = Math.max(width, height);
    const [across, down] = [width / longer, height / longer];
    return [(1 - across) / 2, (1 - down) / 2, across, down];
  }

  paint() {
    const { context } = this;
    context.clearRect(0, 0, SIDE, SIDE);
    if (this.image) {
      const [left, top, across, down] = this.#frame().map((share) => share * SIDE);
      context.imageSmoothingEnabled = this.image.width > 128;
      context.drawImage(this.image, left, top, across, down);
    }
    context.strokeStyle = INK;
    for (const stroke of this.strokes) trace(context, stroke, ([x, y]) => [x * SIDE, y * SIDE], PEN * SIDE);
    if (this.canvas.matches(":focus-visible")) this.#cursor();
  }

  #cursor() {
    const { context } = this;
    const [x, y] = this.pen.map((share) => share * SIDE);
    for (const [style, width] of [["#000", 9], [this.down ? "#ffd43b" : "#fff", 4]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.beginPath();
      context.arc(x, y, (PEN / 2) * SIDE + 6, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #changed() {
    this.paint();
    this.dispatchEvent(new Event("change"));
  }

  #lift() {
    this.down = false;
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  #listen() {
    const { canvas } = this;
    let drawing = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (!event.isPrimary || event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      drawing = [this.#at(event)];
      this.strokes.push(drawing);
      this.#lift();
      this.#changed();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drawing || !event.isPrimary) return;
      const events = event.getCoalescedEvents?.() ?? [];
      for (const one of events.length ? events : [event]) drawing.push(this.#at(one));
      this.#changed();
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      canvas.addEventListener(end, () => (drawing = null));
    }
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => this.paint());
    canvas.addEventListener("blur", () => {
      this.#lift();
      this.paint();
    });
  }

  #key(event) {
    const move = KEYS[event.key];
    if (event.altKey || (event.ctrlKey || event.metaKey ? event.key !== "z" : false)) return;
    if (move) this.#steer(move.map((way) => way * STEP * (event.shiftKey ? 4 : 1)));
    else if (event.key === " " || event.key === "Enter") this.#press();
    else if (event.key === "Escape") this.#lift();
    else if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) this.undo();
    else return;
    event.preventDefault();
    this.paint();
  }

  #steer(by) {
    this.pen = this.pen.map((share, axis) => Math.min(1, Math.max(0, share + by[axis])));
    if (!this.down) return;
    this.strokes.at(-1).push(this.pen);
    this.#changed();
  }

  #press() {
    this.down = !this.down;
    if (this.down) {
      this.strokes.push([this.pen]);
      this.#changed();
    }
    this.dispatchEvent(new CustomEvent("pen", { detail: this.down ? "Pen down." : "Pen up." }));
  }
}
