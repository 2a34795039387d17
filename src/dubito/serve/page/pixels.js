// Images as arrays: resized, rotated, disturbed, and written as PNG.
// A picture is {width, height, planes}: a Float32Array of 0..255 for each of 1 (gray) or 3 channels.

const LUMA = [0.299, 0.587, 0.114]; // as Pillow's mode "L"

export function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

// Pixels of a canvas or an image, on white or, for drawings, on black.
export function pictureOf(source, width, height, channels, ground = "#fff") {
  const canvas = canvasOf(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = ground;
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const planes = Array.from({ length: channels }, () => new Float32Array(width * height));
  for (let i = 0; i < width * height; i++) {
    const at = 4 * i;
    if (channels === 1) planes[0][i] = LUMA[0] * data[at] + LUMA[1] * data[at + 1] + LUMA[2] * data[at + 2];
    else for (let c = 0; c < 3; c++) planes[c][i] = data[at + c];
  }
  return { width, height, planes };
}

// Weights of the pixels of a line in each of `size` pixels over [start, start + length). It is the
// triangle filter of Pillow, so that the page and the service resize alike.
function mixing(start, length, size, line) {
  const scale = length / size;
  const reach = Math.max(scale, 1);
  return Array.from({ length: size }, (_, i) => {
    const center = start + (i + 0.5) * scale;
    const taken = [];
    for (let j = Math.max(0, Math.floor(center - reach)); j < Math.min(line, Math.ceil(center + reach)); j++) {
      taken.push([j, Math.max(0, 1 - Math.abs(j + 0.5 - center) / reach)]);
    }
    const all = taken.reduce((sum, [, weight]) => sum + weight, 0);
    return taken.map(([j, weight]) => [j, weight / all]);
  });
}

// The part `area` [left, top, width, height] of an image, in another size.
export function resized(picture, width, height, area = [0, 0, picture.width, picture.height]) {
  const across = mixing(area[0], area[2], width, picture.width);
  const down = mixing(area[1], area[3], height, picture.height);
  const planes = picture.planes.map((plane) => {
    const rows = new Float32Array(picture.height * width);
    for (let y = 0; y < picture.height; y++) {
      for (let x = 0; x < width; x++) {
        let sum = 0;
        for (const [j, weight] of across[x]) sum += weight * plane[y * picture.width + j];
        rows[y * width + x] = sum;
      }
    }
    const made = new Float32Array(height * width);
    for (let y = 0; y < height; y++) {
      for (const [j, weight] of down[y]) {
        for (let x = 0; x < width; x++) made[y * width + x] += weight * rows[j * width + x];
      }
    }
    return made;
  });
  return { width, height, planes };
}

// Moves the center of brightness to the center of the image, by whole pixels.
export function centeredByMass({ width, height, planes }) {
  const [plane] = planes;
  let [mass, atX, atY] = [0, 0, 0];
  plane.forEach((value, i) => {
    mass += value;
    atX += value * (i % width);
    atY += value * Math.floor(i / width);
  });
  if (mass === 0) return { width, height, planes };
  const dx = Math.round((width - 1) / 2 - atX / mass);
  const dy = Math.round((height - 1) / 2 - atY / mass);
  const moved = new Float32Array(width * height);
  for (let y = Math.max(0, dy); y < Math.min(height, height + dy); y++) {
    for (let x = Math.max(0, dx); x < Math.min(width, width + dx); x++) {
      moved[y * width + x] = plane[(y - dy) * width + (x - dx)];
    }
  }
  return { width, height, planes: [moved] };
}

function borderMean(plane, width, height) {
  let [sum, count] = [0, 0];
  for (let i = 0; i < plane.length; i++) {
    const [x, y] = [i % width, Math.floor(i / width)];
    if (x > 0 && y > 0 && x < width - 1 && y < height - 1) continue;
    sum += plane[i];
    count++;
  }
  return sum / count;
}

// Rotates clockwise about the center; new pixels get the mean color of the border.
export function turned(picture, degrees) {
  if (degrees % 360 === 0) return picture;
  const { width, height } = picture;
  const [sin, cos] = [Math.sin((degrees * Math.PI) / 180), Math.cos((degrees * Math.PI) / 180)];
  const [cx, cy] = [(width - 1) / 2, (height - 1) / 2];
  const planes = picture.planes.map((plane) => {
    const ground = borderMean(plane, width, height);
    const at = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? ground : plane[y * width + x]);
    return Float32Array.from(plane, (_, i) => {
      const [dx, dy] = [(i % width) - cx, Math.floor(i / width) - cy];
      const [x, y] = [cx + cos * dx + sin * dy, cy - sin * dx + cos * dy];
      const [left, top] = [Math.floor(x), Math.floor(y)];
      const [right, low] = [x - left, y - top];
      return (
        (1 - low) * ((1 - right) * at(left, top) + right * at(left + 1, top)) +
        low * ((1 - right) * at(left, top + 1) + right * at(left + 1, top + 1))
      );
    });
  });
  return { width, height, planes };
}

// The same normal deviates each time, so that each position of a slider shows one image.
function deviates(count) {
  let state = 20230723;
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return Float32Array.from({ length: count }, () => {
    return Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  });
}

// Adds Gaussian noise with this standard deviation, where black is 0 and white is 1.
export function noisy(picture, deviation) {
  if (deviation === 0) return picture;
  const size = picture.width * picture.height;
  const noise = deviates(size * picture.planes.length);
  const planes = picture.planes.map((plane, c) =>
    plane.map((value, i) => Math.min(255, Math.max(0, value + 255 * deviation * noise[c * size + i]))),
  );
  return { ...picture, planes };
}

export function paint(picture, canvas) {
  const { width, height, planes } = picture;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = Math.round((planes[c] ?? planes[0])[i]);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

export function png(picture) {
  const canvas = paint(picture, canvasOf(picture.width, picture.height));
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
