/** Saves drawings as files: SVG and PNG, always in the colours of paper and with their titles. */

import { NAMESPACE, setAttributes, svg, text, textWidth, TRANSIENT } from "./svg";

const FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif";
const TITLE = { size: 14, line: 19, bold: 1.1 } as const; // pixels, and how much wider bold letters are
const PNG_SCALE = 3;
const MARGIN = 8;

export function download(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Saves a drawing of the page as an SVG file of its own. */
export function saveSvg(drawing: SVGSVGElement, title: string, name: string): void {
  download(new Blob([standalone(drawing, title)], { type: "image/svg+xml" }), name);
}

/** Saves a drawing of the page as a PNG file, three pixels for each pixel of the page. */
export async function savePng(drawing: SVGSVGElement, title: string, name: string): Promise<void> {
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(drawing, title));
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * PNG_SCALE;
  canvas.height = image.naturalHeight * PNG_SCALE;
  const brush = canvas.getContext("2d");
  if (brush === null) throw new Error("this browser gives no canvas to draw a PNG on");
  brush.fillStyle = "#fff";
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((content) => content && download(content, name));
}

/** The text of an SVG file: the drawing with its title, colours as numbers, nothing that needs the page. */
export function standalone(drawing: SVGSVGElement, title: string): string {
  const { width, height } = sizeOf(drawing);
  const lines = wrapped(title, width);
  const top = MARGIN + (lines.length > 0 ? lines.length * TITLE.line + MARGIN : 0);
  const size = { width: width + 2 * MARGIN, height: height + top + MARGIN };
  const file = svg("svg", { xmlns: NAMESPACE, ...size, viewBox: `0 0 ${size.width} ${size.height}`, "font-family": FONT });
  lines.forEach((line, index) => file.append(titleLine(line, MARGIN + TITLE.size + index * TITLE.line)));
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  for (const element of copy.querySelectorAll(`.${TRANSIENT}`)) element.remove();
  for (const key of ["class", "style", "role", "aria-label"]) copy.removeAttribute(key);
  setAttributes(copy, { x: MARGIN, y: top, width, height });
  file.append(copy);
  return onPaper(new XMLSerializer().serializeToString(file));
}

function sizeOf(drawing: SVGSVGElement): { width: number; height: number } {
  const [, , width, height] = (drawing.getAttribute("viewBox") ?? "0 0 640 400").split(/[ ,]+/).map(Number);
  return { width: width ?? 640, height: height ?? 400 };
}

function titleLine(words: string, y: number): SVGTextElement {
  return text(words, { x: MARGIN, y, "font-size": TITLE.size, "font-weight": 600, fill: "var(--hs-ink)" });
}

/** The lines of a title that are at most so wide; a single word may be wider. */
function wrapped(title: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of title.split(/ +/).filter(Boolean)) {
    const longer = lines.length > 0 ? `${lines.at(-1)} ${word}` : word;
    if (lines.length > 0 && textWidth(longer, TITLE.size) * TITLE.bold <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Replaces variables of the style sheet by the colours that they have on paper. */
function onPaper(text: string): string {
  const probe = document.createElement("div");
  probe.className = "headscope light";
  document.body.append(probe);
  const style = getComputedStyle(probe);
  const coloured = text.replace(/var\((--[\w-]+)\)/g, (_, name: string) => style.getPropertyValue(name).trim());
  probe.remove();
  return coloured;
}
