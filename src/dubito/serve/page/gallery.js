// Samples to click, of known classes and of others.

import * as api from "./api.js";

function card(item, group, place, pick) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sample";
  const image = document.createElement("img");
  image.src = item.src;
  image.width = image.height = 44;
  image.alt = item.truth === null ? `${group.name}, sample ${place}` : `${group.name}, sample ${place}: ${item.truth}`;
  button.append(image);
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => pick(button, image, group, item));
  return button;
}

function part(group, pick) {
  const section = document.createElement("section");
  section.className = `group ${group.kind}`;
  const title = document.createElement("h3");
  title.textContent = group.name;
  const samples = document.createElement("div");
  samples.className = "samples";
  samples.append(...group.items.map((item, i) => card(item, group, i + 1, pick)));
  section.append(title, samples);
  return section;
}

export class Gallery {
  // pick(button, image, group, item)
  constructor(parent, pick) {
    Object.assign(this, { parent, pick });
  }

  async load() {
    if (this.parent.childElementCount) return;
    const { groups } = await api.gallery();
    const filled = groups.filter((group) => group.items.length);
    this.parent.replaceChildren(...filled.map((group) => part(group, this.pick)));
    this.parent.closest("section").hidden = filled.length === 0;
  }

  press(button) {
    this.release();
    button.setAttribute("aria-pressed", "true");
  }

  release() {
    for (const one of this.parent.querySelectorAll("[aria-pressed=true]")) one.setAttribute("aria-pressed", "false");
  }

  // Click the sample with this address; return whether there is one.
  click(address) {
    const image = [...this.parent.querySelectorAll("img")].find((one) => one.src === address);
    image?.closest("button").click();
    return image !== undefined;
  }
}
