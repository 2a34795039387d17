// Images that a user chooses, drops or pastes.

const NAMED = /\.(png|jpe?g|webp|bmp|gif)$/i;

const looksLikeImage = (file) => file.type.startsWith("image/") || (!file.type && NAMED.test(file.name));
const inField = (target) => target instanceof Element && target.closest("input:not([type=range]):not([type=file]), textarea, select");

// Calls take(file), or refuse(text) with the reason.
function offered(files, texts, how, take, refuse) {
  const file = files.find(looksLikeImage);
  if (file) return take(file, files.length);
  if (files.length) return refuse(`“${files[0].name}” is not an image. The service reads JPEG, PNG, WebP, GIF and BMP.`);
  return refuse(texts ? `You ${how} text, not an image.` : `There is no image in what you ${how}.`);
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

  // The page catches every drop: otherwise the browser would open the file in its place.
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
