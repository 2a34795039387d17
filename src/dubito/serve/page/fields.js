// Inputs that are no images: a form with a field for each column, or a box of JSON.

const middle = (span) => (span ? Number(((span[0] + span[1]) / 2).toPrecision(3)) : "");

function field(column, place) {
  const label = document.createElement("label");
  label.textContent = column.name;
  label.htmlFor = `field-${place}`;
  let input;
  if (column.categories) {
    input = document.createElement("select");
    input.append(...column.categories.map((name) => new Option(name, name)));
  } else {
    input = document.createElement("input");
    Object.assign(input, { type: "number", step: "any", required: true });
    input.value = middle(column.span);
  }
  input.id = `field-${place}`;
  const group = document.createElement("p");
  group.className = "field";
  group.append(label, input);
  if (column.span) {
    const span = document.createElement("small");
    span.textContent = `in training ${column.span.map((end) => Number(end.toPrecision(4))).join(" to ")}`;
    span.id = `span-${place}`;
    input.setAttribute("aria-describedby", span.id);
    group.append(span);
  }
  return { group, input, column };
}

function asForm(form, columns, ask) {
  const fields = columns.map(field);
  form.append(...fields.map((one) => one.group));
  const read = () => {
    const open = fields.filter(({ input }) => !input.checkValidity());
    if (open.length) return ask(null, `Still open: ${open.map(({ column }) => column.name).join(", ")}.`);
    const row = fields.map(({ input, column }) => [column.name, column.categories ? input.value : Number(input.value)]);
    return ask({ json: { rows: [Object.fromEntries(row)] } }, "");
  };
  form.addEventListener("input", read);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    read();
  });
  read();
}

const zeros = (shape) => (shape.length === 0 ? 0 : Array.from({ length: shape[0] }, () => zeros(shape.slice(1))));

function asText(form, shape, ask) {
  const label = document.createElement("label");
  label.htmlFor = "json";
  label.textContent = `One input of shape (${shape.join(", ")}), as JSON`;
  const text = document.createElement("textarea");
  Object.assign(text, { id: "json", rows: 8, spellcheck: false });
  text.value = JSON.stringify(zeros(shape));
  const button = document.createElement("button");
  Object.assign(button, { type: "submit", className: "main", textContent: "Ask" });
  form.append(label, text, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    let value;
    try {
      value = JSON.parse(text.value);
    } catch (error) {
      return ask(null, `This is no JSON: ${error.message}.`);
    }
    return ask({ json: { inputs: [value] } }, "");
  });
}

// Calls ask(question, "") or, where there is nothing to ask yet, ask(null, why).
export function build(form, { columns, shape }, ask) {
  if (columns) asForm(form, columns, ask);
  else asText(form, shape, ask);
}
