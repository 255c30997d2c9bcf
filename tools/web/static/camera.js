// Camera: what the policy sees at the displayed record, in place of the memory.

import { CanvasView, onChange, paintEmpty } from "./theme.js";
import { bytesOf } from "./palette.js";

const GAP = 12;

export class Camera {
  constructor(about, stage) {
    this.about = about;
    this.stage = stage;
    this.ended = false;
    const [first] = about.cameras;
    document.getElementById("h-memory").textContent = about.cameras.length > 1 ? "Cameras" : "Camera";
    document.getElementById("memory-note").textContent = about.cameras.map((c) => `${c.name}, ${c.rows} × ${c.columns}`).join(" · ");
    document.getElementById("memory-controls").hidden = true;
    document.querySelector(".card.memory .legends").hidden = true;
    document.getElementById("coverage").setAttribute("aria-label", `What the policy sees through ${first.name}`);
    this.layers = about.cameras.map((c) => Object.assign(document.createElement("canvas"), { width: c.columns, height: c.rows }));
    this.view = new CanvasView("coverage", (ctx, w, h) => this.paint(ctx, w, h));
    onChange(() => this.view.draw());
  }

  setMemory() {}

  usePolicy() {}

  paint(ctx, width, height) {
    const images = this.stage.now()?.image;
    if (!images) return paintEmpty(ctx, width, height, "no image yet");
    const side = (width - GAP * (images.length - 1)) / images.length;
    ctx.imageSmoothingEnabled = false;
    images.forEach((encoded, i) => {
      const { rows, columns } = this.about.cameras[i], scale = Math.min(side / columns, height / rows);
      this.fill(this.layers[i], bytesOf(encoded));
      const w = columns * scale, h = rows * scale;
      ctx.drawImage(this.layers[i], i * (side + GAP) + (side - w) / 2, (height - h) / 2, w, h);
    });
  }

  fill(layer, bytes) {
    const context = layer.getContext("2d"), data = context.createImageData(layer.width, layer.height);
    bytes.forEach((grey, i) => data.data.set([grey, grey, grey, 255], 4 * i));
    context.putImageData(data, 0, 0);
  }
}
