// Questions as they arise: the newest wins, older ones are given up.

import * as api from "./api.js";
import * as verdict from "./verdict.js";

const PACE = 60; // ms between questions while a hand moves
const SLOW = 400; // ms without an answer before the page says that it waits

// Whether an answer is under way; screen readers wait for it, too.
export function waiting(flag) {
  document.getElementById("answer").setAttribute("aria-busy", flag);
}

export class Asking {
  #number = 0;
  #current = null; // AbortController of the question under way
  #timer = null;
  #last = null; // for another try

  // show(answer), fail(error) and blank(), which takes old answers from the page
  constructor(classes, { show, fail, blank }) {
    Object.assign(this, { classes, show, fail, blank });
  }

  // A question is made when it is asked: make() promises what `api.predict` takes.
  soon(make) {
    this.#last = make;
    waiting(true);
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.again();
    }, PACE);
  }

  // Ask the last question anew; whether there is one.
  again() {
    if (this.#last) this.#ask(this.#last);
    return this.#last !== null;
  }

  forget() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#last = null;
    this.#current?.abort();
    this.#number++;
    verdict.busy(false);
    waiting(false);
  }

  async #ask(make) {
    const number = ++this.#number;
    const newest = () => number === this.#number;
    waiting(true);
    this.#current?.abort();
    const { signal } = (this.#current = new AbortController());
    const slow = setTimeout(() => verdict.busy(true), SLOW);
    try {
      const [said] = await api.predict(await make(), this.classes, signal, (error) => newest() && this.#busy(error));
      if (newest()) this.show(said);
    } catch (error) {
      if (newest() && error.name !== "AbortError") this.fail(error);
    } finally {
      clearTimeout(slow);
      if (newest()) {
        verdict.busy(false);
        waiting(this.#timer !== null);
      }
    }
  }

  #busy({ headline, wait }) {
    this.blank();
    verdict.trouble({ headline, message: `Asking again in ${wait} s.` }, false);
  }
}
