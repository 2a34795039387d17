// Dirichlet distribution of three classes on a triangle.

import { logExcess } from "./dirichlet.js";
import { percent } from "./verdict.js";

const SPAN = Math.log(1000); // of the colors, to both sides of the uniform density
const MARGIN = { top: 66, side: 46, bottom: 64 };
const RAMP = ["--ramp-0", "--ramp-1", "--ramp-2", "--ramp-3", "--ramp-4"];

function rgb(text) {
  const hex = text.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// 256 colors between those of the style sheet, as bytes of pixels.
function ramp() {
  const style = getComputedStyle(document.documentElement);
  const stops = RAMP.map((name) => rgb(style.getPropertyValue(name)));
  const bytes = Uint8Array.from({ length: 4 * 256 }, (_, i) => {
    const [at, channel] = [(Math.floor(i / 4) / 255) * (stops.length - 1), i % 4];
    if (channel === 3) return 255;
    const left = Math.min(Math.floor(at), stops.length - 2);
    return Math.round(stops[left][channel] + (at - left) * (stops[left + 1][channel] - stops[left][channel]));
  });
  return new Uint32Array(bytes.buffer);
}

export class Triangle {
  constructor(canvas, corners, follow, reading, classes) {
    Object.assign(this, { canvas, follow, reading, classes });
    this.context = canvas.getContext("2d");
    this.chosen = [0, 1, 2];
    this.answer = null;
    this.#corners();
    this.#grid();
    this.selects = ["Top", "Left", "Right"].map((name, i) => this.#select(corners, name, i));
    follow.addEventListener("change", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  }

  #select(parent, name, place) {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.append(...this.classes.map((text, i) => new Option(text, i)));
    const text = document.createElement("span");
    text.textContent = name;
    label.append(text, select);
    parent.append(label);
    select.addEventListener("change", () => {
      const [before, now] = [this.chosen[place], Number(select.value)];
      // Classes differ: the corner that had this one gets the other.
      this.chosen = this.chosen.map((one) => (one === now ? before : one));
      this.chosen[place] = now;
      this.follow.checked = false;
      this.draw();
    });
    return select;
  }

  #corners() {
    const { width, height } = this.canvas;
    const side = Math.min(width - 2 * MARGIN.side, (height - MARGIN.top - MARGIN.bottom) / (Math.sqrt(3) / 2));
    const [left, low] = [(width - side) / 2, MARGIN.top + side * (Math.sqrt(3) / 2)];
    this.points = [[width / 2, MARGIN.top], [left, low], [left + side, low]];
  }

  // Logarithms of the three shares at each pixel of the triangle.
  #grid() {
    const { width, height } = this.canvas;
    const [[ax, ay], [bx, by], [cx, cy]] = this.points;
    const area = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy);
    this.pixels = [];
    const logs = [];
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const u = ((by - cy) * (x + 0.5 - cx) + (cx - bx) * (y + 0.5 - cy)) / area;
        const v = ((cy - ay) * (x + 0.5 - cx) + (ax - cx) * (y + 0.5 - cy)) / area;
        const w = 1 - u - v;
        if (u <= 0 || v <= 0 || w <= 0) continue;
        this.pixels.push(y * width + x);
        logs.push(Math.log(u), Math.log(v), Math.log(w));
      }
    }
    this.logs = Float64Array.from(logs);
  }

  clear() {
    this.answer = null;
    this.draw();
  }

  show(answer) {
    this.answer = answer.alpha ? answer : null;
    this.draw();
  }

  draw() {
    if (this.answer && this.follow.checked) {
      const { probs: p } = this.answer;
      this.chosen = p.map((_, i) => i).sort((a, b) => p[b] - p[a]).slice(0, 3);
    }
    this.selects.forEach((select, i) => (select.value = String(this.chosen[i])));
    const alpha = this.answer ? this.chosen.map((i) => this.answer.alpha[i]) : null;
    this.#surface(alpha);
    this.#labels(alpha);
    this.#describe(alpha);
  }

  #surface(alpha) {
    const { context, canvas, pixels, logs } = this;
    const image = context.createImageData(canvas.width, canvas.height);
    const painted = new Uint32Array(image.data.buffer);
    const colors = ramp();
    const excess = alpha ? logExcess(alpha) : () => -Infinity;
    for (let i = 0; i < pixels.length; i++) {
      const log = excess(logs[3 * i], logs[3 * i + 1], logs[3 * i + 2]);
      painted[pixels[i]] = colors[Math.round(255 * Math.min(1, Math.max(0, (log + SPAN) / (2 * SPAN))))];
    }
    context.putImageData(image, 0, 0);
  }

  #labels(alpha) {
    const { context, points } = this;
    const style = getComputedStyle(this.canvas);
    const [ink, soft] = [style.color, style.getPropertyValue("--soft")];
    context.lineWidth = 2;
    context.strokeStyle = soft;
    context.beginPath();
    points.forEach((point) => context.lineTo(...point));
    context.closePath();
    context.stroke();
    const at = [["center", -34], ["left", 30], ["right", 30]];
    points.forEach(([x, y], i) => {
      const edge = i === 0 ? x : i === 1 ? Math.max(4, x - 20) : Math.min(this.canvas.width - 4, x + 20);
      context.textAlign = at[i][0];
      context.textBaseline = "middle";
      context.fillStyle = ink;
      context.font = `600 30px ${style.fontFamily}`;
      const name = this.classes[this.chosen[i]];
      context.fillText(name.length > 18 ? `${name.slice(0, 17)}…` : name, edge, y + at[i][1], 300);
    });
    if (alpha) this.#mean(alpha);
  }

  #mean(alpha) {
    const { context, points } = this;
    const all = alpha.reduce((sum, a) => sum + a, 0);
    const at = [0, 1].map((axis) => alpha.reduce((sum, a, i) => sum + (a / all) * points[i][axis], 0));
    for (const [style, width] of [["#000", 7], ["#fff", 3]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.beginPath();
      context.arc(...at, 9, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #describe(alpha) {
    if (!alpha) {
      this.reading.textContent = "\u00a0";
      this.canvas.setAttribute("aria-label", "No density yet");
      return;
    }
    const names = this.chosen.map((i) => this.classes[i]);
    const all = alpha.reduce((sum, a) => sum + a, 0);
    const shares = alpha.map((a, i) => `${names[i]}: ${percent(a / all)}`).join(", ");
    const values = alpha.map((a, i) => `${names[i]}: ${a < 100 ? a.toFixed(1) : Math.round(a)}`).join(", ");
    this.reading.textContent = `Ring: the mean, ${shares}. Alpha: ${values}.`;
    this.canvas.setAttribute("aria-label", `Density of the Dirichlet distribution over ${names.join(", ")}. Mean: ${shares}. Alpha: ${values}.`);
  }
}
