// Sends inputs to the service: a new input replaces an older one that has no answer yet.

import * as api from "./api.js";
import * as verdict from "./verdict.js";

const PACE = 60; // ms between requests while a user draws
const SLOW = 400; // ms without an answer before the page shows that it waits

// Show whether an answer is pending, to screen readers too.
export function waiting(flag) {
  document.getElementById("answer").setAttribute("aria-busy", flag);
}

export class Asking {
  #number = 0;
  #current = null; // AbortController of the pending request
  #timer = null;
  #last = null; // for a retry

  // show(answer), fail(error), and blank(), which removes the old answer
  constructor(model, { show, fail, blank }) {
    Object.assign(this, { model, show, fail, blank });
  }

  // make() returns a promise of a question; it is called when the request is sent.
  soon(make) {
    this.#last = make;
    waiting(true);
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.again();
    }, PACE);
  }

  // Send the last question again; return whether there is one.
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
      const [answer] = await api.predict(await make(), this.model, signal, (error) => newest() && this.#busy(error));
      if (newest()) this.show(answer);
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
    verdict.trouble({ headline, message: `Trying again in ${wait} s.` }, false);
  }
}
