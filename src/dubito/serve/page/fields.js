// Inputs that are not images: a form with a field for each column, a box for a text or for JSON, or a file.

// Formats of texts, and what they are cut into.
const TEXTS = { text: "words", tokens: "tokens" };

const middle = ({ low, high }) => Number(((low + high) / 2).toPrecision(3));

// Whether the training data had rows without a value.
const optional = ({ categories, fill }) => (categories ? categories.includes("") : fill !== null && fill !== undefined);

function control(column) {
  if (column.categories) {
    const select = document.createElement("select");
    select.append(...column.categories.map((name) => new Option(name === "" ? "(missing)" : name, name)));
    return select;
  }
  const input = document.createElement("input");
  Object.assign(input, { type: "number", step: "any", required: !optional(column), value: middle(column) });
  return input;
}

function field(column, place) {
  const label = document.createElement("label");
  label.textContent = column.name;
  label.htmlFor = `field-${place}`;
  const input = control(column);
  input.id = `field-${place}`;
  const group = document.createElement("p");
  group.className = "field";
  group.append(label, input);
  if (!column.categories) {
    const range = document.createElement("small");
    const ends = [column.low, column.high].map((end) => Number(end.toPrecision(4))).join(" to ");
    range.textContent = ends + (optional(column) ? ", or empty" : "");
    range.id = `range-${place}`;
    input.setAttribute("aria-describedby", range.id);
    group.append(range);
  }
  return { group, input, column };
}

function valueOf({ input, column }) {
  if (column.categories) return input.value === "" ? null : input.value;
  return input.value === "" ? null : Number(input.value);
}

function asForm(form, columns, ask) {
  const fields = columns.map(field);
  form.append(...fields.map(({ group }) => group));
  const read = () => {
    const open = fields.filter(({ input }) => !input.checkValidity());
    if (open.length) return ask(null, `Enter a number: ${open.map(({ column }) => column.name).join(", ")}.`);
    return ask({ json: { rows: [Object.fromEntries(fields.map((one) => [one.column.name, valueOf(one)]))] } }, "");
  };
  form.addEventListener("input", read);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    read();
  });
  read();
}

const zeros = (shape) => (shape.length === 0 ? 0 : Array.from({ length: shape[0] }, () => zeros(shape.slice(1))));

function asText(form, [length], unit, ask) {
  const label = document.createElement("label");
  label.htmlFor = "text";
  label.textContent = "Text";
  const text = document.createElement("textarea");
  Object.assign(text, { id: "text", rows: 8, className: "prose" });
  text.setAttribute("aria-describedby", "text-length");
  const limit = document.createElement("small");
  Object.assign(limit, { id: "text-length", className: "soft", textContent: `The model reads at most ${length} ${unit}.` });
  form.append(label, text, limit);
  text.addEventListener("input", () => {
    if (text.value.trim()) ask({ json: { inputs: [text.value] } }, "");
    else ask(null, "");
  });
}

function asArray(form, shape, ask) {
  const label = document.createElement("label");
  label.htmlFor = "json";
  label.textContent = `An array of shape (${shape.join(", ")}), as JSON`;
  const text = document.createElement("textarea");
  Object.assign(text, { id: "json", rows: 8, spellcheck: false });
  text.value = JSON.stringify(zeros(shape));
  const button = document.createElement("button");
  Object.assign(button, { type: "submit", className: "main", textContent: "Predict" });
  form.append(label, text, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    let value;
    try {
      value = JSON.parse(text.value);
    } catch (error) {
      return ask(null, `This is not JSON: ${error.message}.`);
    }
    return ask({ json: { inputs: [value] } }, "");
  });
}

function asFile(form, types, ask) {
  const label = document.createElement("label");
  label.htmlFor = "input-file";
  label.textContent = `A file: ${types.join(", ")}`;
  const input = document.createElement("input");
  Object.assign(input, { id: "input-file", type: "file", accept: types.join() });
  form.append(label, input);
  input.addEventListener("change", () => {
    if (input.files.length) ask({ images: [input.files[0]] }, "");
  });
}

// Calls ask(question, ""), ask(null, why) if the input is not complete, or ask(null, "") if it is empty.
export function build(form, { inputs, shape, media_types }, ask) {
  const files = media_types.filter((type) => !["application/json", "multipart/form-data"].includes(type));
  if (inputs.name === "table") asForm(form, inputs.columns, ask);
  else if (TEXTS[inputs.name]) asText(form, shape, TEXTS[inputs.name], ask);
  else if (files.length) asFile(form, files, ask);
  else asArray(form, shape, ask);
}
