// Images from elsewhere: chosen, dropped or pasted.

const NAMED = /\.(png|jpe?g|webp|bmp|gif|tiff?)$/i;

const looksLikeImage = (file) => file.type.startsWith("image/") || (!file.type && NAMED.test(file.name));
const inField = (target) => target instanceof Element && target.closest("input:not([type=range]):not([type=file]), textarea, select");

// Calls take(file), or refuse(text) with what was wrong.
function offered(files, texts, how, take, refuse) {
  const file = files.find(looksLikeImage);
  if (file) return take(file, files.length);
  if (files.length) return refuse(`“${files[0].name}” is no image. PNG, JPEG, WebP, BMP, GIF and TIFF are read.`);
  return refuse(texts ? `What was ${how} is text, not an image.` : `There is no image in what was ${how}.`);
}

export function listen({ input, easel, active, take, refuse, link }) {
  input.addEventListener("change", () => {
    if (input.files.length) offered([...input.files], false, "chosen", take, refuse);
    input.value = ""; // so that the same file can be chosen again
  });

  document.addEventListener("paste", (event) => {
    if (!active() || inField(event.target)) return;
    event.preventDefault();
    const data = event.clipboardData;
    offered([...data.files], data.types.some((type) => type.startsWith("text/")), "pasted", take, refuse);
  });

  // The whole page catches what is dropped: a miss would make the browser leave the page for the file.
  let depth = 0;
  const carried = (event) => [...(event.dataTransfer?.types ?? [])].length > 0;
  const shown = (flag) => easel.classList.toggle("dropping", flag);
  document.addEventListener("dragenter", (event) => {
    if (active() && carried(event)) shown(++depth > 0);
  });
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) shown(false);
  });
  document.addEventListener("dragover", (event) => {
    if (active() && !inField(event.target)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    depth = 0;
    shown(false);
    if (!active() || inField(event.target)) return;
    event.preventDefault();
    const data = event.dataTransfer;
    if (link(data.getData("text/uri-list"))) return; // a sample of the gallery was dragged here
    offered([...data.files], data.types.some((type) => type.startsWith("text/")), "dropped", take, refuse);
  });
}
