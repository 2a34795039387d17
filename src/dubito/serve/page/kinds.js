// The three uncertainties, each with a sentence on what it means.

const KINDS = [
  {
    key: "data",
    name: "Data",
    about: "Ambiguity: how much the input looks like several classes at once. More training data would not settle it.",
  },
  {
    key: "distributional",
    name: "Distributional",
    about: "Unfamiliarity: how little the training data had of this. Learning from more like it would settle it.",
  },
  { key: "total", name: "Total", about: "How open the answer is, for both reasons: their sum." },
];

export class Kinds {
  constructor(list, about, scales, classes) {
    this.scales = scales;
    about.textContent = `From 0, certain, to ${scales.total.toFixed(2)}, a tie of all ${classes} classes. Best compared between images.`;
    list.replaceChildren();
    this.rows = KINDS.map(({ key, name, about }) => {
      const term = document.createElement("dt");
      const value = document.createElement("span");
      value.className = "value";
      term.append(name, value);
      const bar = document.createElement("span");
      bar.className = `bar ${key}`;
      const parts = key === "total" ? ["data", "distributional"] : [key];
      const fills = parts.map((part) => {
        const one = document.createElement("i");
        one.className = part;
        return one;
      });
      bar.append(...fills);
      const text = document.createElement("dd");
      text.textContent = about;
      const meter = document.createElement("dd");
      meter.className = "meter";
      meter.append(bar);
      const group = document.createElement("div");
      group.append(term, meter, text);
      list.append(group);
      return { key, value, fills, group };
    });
    this.clear();
  }

  clear() {
    for (const { value, fills } of this.rows) {
      value.textContent = "–";
      fills.forEach((one) => one.style.setProperty("--share", 0));
    }
  }

  show({ uncertainty }) {
    for (const { key, value, fills, group } of this.rows) {
      const scale = this.scales[key] || 1;
      const amount = uncertainty[key];
      group.classList.toggle("untold", amount === null);
      value.textContent = amount === null ? "not told by this method" : Math.max(0, amount).toFixed(2);
      // The bar of the total shows of what it is made, where the method tells.
      const parts = key !== "total" ? [amount ?? 0] : this.#parts(uncertainty);
      fills.forEach((one, i) => one.style.setProperty("--share", Math.min(1, Math.max(0, parts[i] / scale))));
    }
  }

  #parts({ data, distributional, total }) {
    return data === null || distributional === null ? [total, 0] : [data, distributional];
  }
}
