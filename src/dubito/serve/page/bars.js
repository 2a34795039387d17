// Belief in each class and the vacuity, or probabilities, as a table with bars.

import { percent } from "./verdict.js";

const MOST = 12; // classes shown one by one
const TOP = 10; // of more than that

const two = (value) => value.toFixed(2);

function row(parent, name, kind) {
  const line = parent.insertRow();
  line.className = kind;
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = name;
  line.append(head);
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.append(document.createElement("i"));
  line.insertCell().append(bar);
  return { line, head, fill: bar.firstChild, mass: line.insertCell(), prob: line.insertCell() };
}

function fill(row, share, mass, prob) {
  row.fill.style.setProperty("--share", Math.min(1, Math.max(0, share)));
  row.mass.textContent = mass;
  row.prob.textContent = prob;
}

export class Bars {
  constructor(table, classes, evidential) {
    this.table = table;
    this.classes = classes;
    this.#build(evidential);
  }

  #build(evidential) {
    const [body, rest] = this.table.tBodies;
    body.replaceChildren();
    rest.replaceChildren();
    this.evidential = evidential;
    this.table.classList.toggle("plain", !evidential);
    this.table.classList.toggle("short", this.classes.every((name) => name.length <= 8));
    this.many = this.classes.length > MOST;
    const shown = this.many ? Array.from({ length: TOP }, (_, i) => `${i + 1}.`) : this.classes;
    this.rows = shown.map((name) => row(body, name, "class"));
    this.others = this.many ? row(body, `${this.classes.length - TOP} others`, "class others") : null;
    this.doubt = evidential ? row(rest, "No evidence", "doubt") : null;
    if (this.doubt) {
      const name = document.createElement("small");
      name.textContent = "vacuity";
      this.doubt.head.append(" ", name);
    }
    document.getElementById("beliefs-title").textContent = evidential ? "Belief" : "Probability";
    this.clear();
  }

  #explain(unfamiliar) {
    const shares = this.evidential ? "Shares of the evidence; the rest is vacuity." : "";
    const brackets = unfamiliar ? "In brackets: not calibrated for such inputs." : "";
    document.getElementById("beliefs-about").textContent = `${shares} ${brackets}`.trim() || "\u00a0";
  }

  clear() {
    this.#explain(false);
    const all = [...this.rows, this.others, this.doubt].filter(Boolean);
    for (const one of all) {
      fill(one, 0, "–", one === this.doubt ? "" : "–");
      one.line.classList.remove("first");
    }
    if (this.many) this.rows.forEach((one, i) => (one.head.textContent = `${i + 1}.`));
  }

  show({ probs, belief, vacuity, reason }) {
    const evidential = belief !== null && vacuity !== null;
    if (evidential !== this.evidential) this.#build(evidential);
    const unfamiliar = reason === "unfamiliar" || reason === "out_of_range";
    this.#explain(unfamiliar);
    const probable = (share) => (unfamiliar ? `(${percent(share)})` : percent(share));
    const shares = evidential ? belief : probs;
    const best = probs.indexOf(Math.max(...probs));
    const order = this.classes.map((_, i) => i);
    if (this.many) order.sort((a, b) => shares[b] - shares[a] || probs[b] - probs[a]);
    this.rows.forEach((one, place) => {
      const i = order[place];
      one.head.textContent = this.classes[i];
      one.head.title = this.classes[i];
      one.line.classList.toggle("first", i === best);
      fill(one, shares[i], two(shares[i]), probable(probs[i]));
    });
    if (this.others) {
      const rest = order.slice(TOP);
      const sum = (values) => rest.reduce((all, i) => all + values[i], 0);
      fill(this.others, sum(shares), two(sum(shares)), probable(sum(probs)));
    }
    if (this.doubt) fill(this.doubt, vacuity, two(vacuity), "");
  }
}
