// Uncertainty along a slider: a line, with a mark for each answer.

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, PAD, THUMB] = [56, 6, 18]; // px; THUMB as in style.css

function draw(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export class Trace {
  // word(value) writes a value of the slider
  constructor(svg, reading, slider, word) {
    Object.assign(this, { svg, reading, slider, word });
    this.clear();
    new ResizeObserver(() => this.#paint()).observe(svg);
  }

  // Values at which to predict.
  values(count) {
    const [low, high] = [Number(this.slider.min), Number(this.slider.max)];
    return Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
  }

  clear() {
    if (this.points === null) return;
    this.#set(null, "\u00a0", "No trace yet");
  }

  // points: [{value, doubt in 0..1, accepted: true, false or null}]
  show(points, measure) {
    const text = this.#summary(points, measure);
    this.#set(points, text, text);
  }

  #set(points, text, label) {
    this.points = points;
    this.reading.textContent = text;
    this.svg.setAttribute("aria-label", label);
    this.#paint();
  }

  get #width() {
    return this.svg.clientWidth || 300;
  }

  #x(value) {
    const [low, high] = [Number(this.slider.min), Number(this.slider.max)];
    // The center of a slider's thumb stays half its width within the track.
    return THUMB / 2 + ((this.#width - THUMB) * (value - low)) / (high - low);
  }

  #y(doubt) {
    return HEIGHT - PAD - (HEIGHT - 2 * PAD) * Math.min(1, Math.max(0, doubt));
  }

  #paint() {
    const edges = [0, 1].map((doubt) => draw("line", { class: "edge", x1: 0, x2: this.#width, y1: this.#y(doubt), y2: this.#y(doubt) }));
    this.now = draw("line", { class: "now", y1: 0, y2: HEIGHT });
    this.svg.replaceChildren(...edges, this.now, ...this.#line());
    this.mark();
  }

  #line() {
    if (!this.points) return [];
    const places = this.points.map((p) => [this.#x(p.value), this.#y(p.doubt)]);
    const line = draw("polyline", { class: "line", points: places.map((p) => p.join(",")).join(" ") });
    const marks = this.points.map((p, i) =>
      draw("circle", { class: p.accepted === false ? "no" : "yes", cx: places[i][0], cy: places[i][1], r: 3.5 }),
    );
    return [line, ...marks];
  }

  // The slider has moved.
  mark() {
    const x = this.#x(Number(this.slider.value));
    this.now.setAttribute("x1", x);
    this.now.setAttribute("x2", x);
  }

  #summary(points, measure) {
    const [first, last] = [points[0], points.at(-1)];
    const moved = `${measure} ${first.doubt.toFixed(2)} → ${last.doubt.toFixed(2)}`;
    if (points.some((p) => p.accepted === null)) return `${moved}.`;
    const accepted = points.filter((p) => p.accepted).length;
    if (accepted === points.length) return `${moved}; always accepted.`;
    if (accepted === 0) return `${moved}; never accepted.`;
    const until = points.findIndex((p) => !p.accepted);
    if (until === accepted) return `${moved}; abstains from ${this.word(points[until].value)} on.`;
    return `${moved}; accepts ${accepted} of ${points.length}.`;
  }
}
