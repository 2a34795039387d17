// Values of a regression with their intervals, each on a scale around the training data.

import { rate, rounded } from "./verdict.js";

const SPREAD = 3; // standard deviations of the training data to each side of its mean

function made(name, className, text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

export class Intervals {
  constructor(parent, { task, levels: [level] }) {
    this.rows = task.names.map((name, i) => {
      const [low, high] = [-SPREAD, SPREAD].map((side) => task.mean[i] + side * task.std[i]);
      const track = made("div", "track");
      const usual = made("span", "usual");
      const range = made("i", "range");
      const point = made("b", "point");
      track.append(usual, range, point);
      const text = made("p", "reading");
      const ends = made("p", "ends soft");
      ends.append(...[low, task.mean[i], high].map((value) => made("span", "", rounded(value, task.std[i]))));
      const row = made("div", "target");
      row.append(made("h4", "", name), text, track, ends);
      parent.append(row);
      usual.style.setProperty("--from", (SPREAD - 1) / (2 * SPREAD));
      usual.style.setProperty("--to", (SPREAD + 1) / (2 * SPREAD));
      return { low, high, track, range, point, text, write: (value) => rounded(value, task.std[i]) };
    });
    this.word = level ? `${rate(level)} interval` : "Calibrated interval";
    this.clear();
  }

  clear() {
    for (const { track, text } of this.rows) {
      track.classList.add("empty");
      text.textContent = "–";
    }
  }

  show({ values, interval, accepted, reason }) {
    const word = reason === "unfamiliar" || reason === "out_of_range" ? "Interval, not calibrated for such inputs" : this.word;
    this.rows.forEach(({ low, high, track, range, point, text, write }, i) => {
      const place = (value) => Math.min(1, Math.max(0, (value - low) / (high - low)));
      track.classList.remove("empty");
      track.classList.toggle("doubt", accepted === false);
      range.hidden = interval === null;
      if (interval) {
        range.style.setProperty("--from", place(interval.lower[i]));
        range.style.setProperty("--to", place(interval.upper[i]));
      }
      point.style.setProperty("--from", place(values[i]));
      const between = interval ? `. ${word}: ${write(interval.lower[i])} to ${write(interval.upper[i])}` : "";
      text.textContent = `${write(values[i])}${between}.`;
    });
  }
}
