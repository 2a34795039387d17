// Aleatoric, epistemic and total uncertainty.

import { rounded } from "./verdict.js";

const KINDS = [
  { key: "aleatoric", name: "Aleatoric", about: ["High if several classes fit the input.", "High if targets vary for such inputs."] },
  { key: "epistemic", name: "Epistemic", about: ["High if there is little evidence for any class.", "High if there is little evidence about their mean."] },
  { key: "total", name: "Total", about: ["Their sum.", "Their sum."] },
];

// The value of a full bar, and what it means.
export function scale({ task, unit }) {
  const count = task.classes?.length;
  if (!count) {
    const variance = task.std.reduce((sum, std) => sum + std ** 2, 0);
    return [variance, `Variances. A full bar is the variance of the training data, ${rounded(variance)}.`];
  }
  const most = unit === "nats" ? Math.log(count) : 1 - 1 / count;
  const of = unit === "nats" ? "In nats, before calibration" : "Variance of the probabilities, before calibration";
  return [most, `${of}. A full bar is a tie of all ${count} classes, ${most.toFixed(2)}.`];
}

function element(name, className, ...content) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...content);
  return made;
}

export class Kinds {
  constructor(list, about, model) {
    [this.scale, about.textContent] = scale(model);
    this.classification = Boolean(model.task.classes);
    this.rows = KINDS.map(({ key, name, about: texts }) => {
      const value = element("span", "value");
      const parts = key === "total" ? ["aleatoric", "epistemic"] : [key]; // the bar of the total shows both parts
      const fills = parts.map((part) => element("i", part));
      const bar = element("span", "bar", ...fills);
      const text = element("dd", "", texts[this.classification ? 0 : 1]);
      return { key, value, parts, fills, group: element("div", "", element("dt", "", name, value), element("dd", "meter", bar), text) };
    });
    list.replaceChildren(...this.rows.map(({ group }) => group));
    this.clear();
  }

  clear() {
    for (const { value, fills } of this.rows) {
      value.textContent = "–";
      fills.forEach((fill) => fill.style.setProperty("--share", 0));
    }
  }

  show(answer) {
    for (const { key, value, parts, fills } of this.rows) {
      const amount = Math.max(0, answer[key]);
      value.textContent = this.classification ? amount.toFixed(2) : rounded(amount);
      fills.forEach((fill, i) => fill.style.setProperty("--share", Math.min(1, Math.max(0, answer[parts[i]] / this.scale))));
    }
  }
}
