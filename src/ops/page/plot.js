'use strict';
// A plot of the last five minutes on a canvas: lines from 0, with units, gaps where nothing was measured, and a reading at
// the pointer or by the arrow keys.

const SPAN_MS = 300_000;
const GAP_MS = 2_500;
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];
const MARGIN = { left: 46, right: 8, top: 8, bottom: 20 };

/** The least of 1, 2, 2.5, 5, 10 … times a power of ten that is not below `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 2.5, 5, 10].find((step) => step * power >= value * 0.999999);
  return step * power;
}

/** A number with three digits that say something. */
function short(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e9) return trim(value / 1e9) + ' G';
  if (size >= 1e6) return trim(value / 1e6) + ' M';
  if (size >= 1e4) return trim(value / 1e3) + ' k';
  return trim(value);
}

function trim(value) {
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(Number(value.toFixed(digits)));
}

class Plot {
  /**
   * @param home the element to be in
   * @param least what the axis reaches at least, so that noise does not look like a mountain
   * @param lines [{ name, colour }], the colour a custom property of the style
   */
  constructor(home, label, least, lines) {
    this.label = label;
    this.least = least;
    this.lines = lines;
    this.times = [];
    this.values = lines.map(() => []);
    this.top = least;
    this.topHeld = 0;
    this.at = null;
    const legend = document.createElement('ul');
    legend.className = 'legend';
    this.figures = lines.map((line, index) => {
      const item = document.createElement('li');
      item.append(sample(line.colour, DASHES[index]), line.name + ' ');
      const figure = document.createElement('b');
      figure.textContent = '–';
      item.append(figure);
      legend.append(item);
      return figure;
    });
    this.when = document.createElement('li');
    this.when.className = 'when';
    legend.append(this.when);
    this.canvas = document.createElement('canvas');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    home.append(legend, this.canvas);
    this.canvas.addEventListener('pointermove', (event) => this.point(event.offsetX));
    this.canvas.addEventListener('pointerleave', () => this.read(null));
    this.canvas.addEventListener('blur', () => this.read(null));
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  /** Takes the times, ascending, and for each line its values; null is a gap. */
  show(times, values) {
    this.times = times;
    this.values = values;
    this.draw();
  }

  point(x) {
    const width = this.canvas.clientWidth - MARGIN.left - MARGIN.right;
    const last = this.times[this.times.length - 1];
    const time = last - SPAN_MS + ((x - MARGIN.left) / width) * SPAN_MS;
    let nearest = null;
    this.times.forEach((known, index) => {
      if (nearest === null || Math.abs(known - time) < Math.abs(this.times[nearest] - time)) nearest = index;
    });
    this.read(nearest === null ? null : this.times[nearest]);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key === 'Escape') return this.read(null);
    if (!(event.key in steps) || this.times.length === 0) return undefined;
    event.preventDefault();
    const now = this.index() ?? this.times.length - 1;
    const next = Math.min(Math.max(now + steps[event.key], 0), this.times.length - 1);
    return this.read(this.times[next]);
  }

  /** The place of what is being read. */
  index() {
    const index = this.at === null ? -1 : this.times.indexOf(this.at);
    return index < 0 ? null : index;
  }

  read(time) {
    this.at = time;
    this.draw();
  }

  /** The top of the axis: it rises at once and sinks only after 15 s, so that the picture stands still. */
  scale() {
    let most = 0;
    for (const line of this.values) for (const value of line) if (value > most) most = value;
    const wanted = Math.max(most > 0 ? roundUp(most * 1.05) : 0, this.least);
    const now = Date.now();
    if (wanted >= this.top) {
      this.top = wanted;
      this.topHeld = now;
    } else if (now - this.topHeld > 15_000) {
      this.top = wanted;
      this.topHeld = now;
    }
    return this.top;
  }

  draw() {
    const { canvas, times } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (width === 0 || height === 0) return;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const top = this.scale();
    const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    const last = times.length > 0 ? times[times.length - 1] : Date.now();
    const x = (time) => MARGIN.left + ((time - last + SPAN_MS) / SPAN_MS) * inner.width;
    const y = (value) => MARGIN.top + (1 - value / top) * inner.height;

    pen.font = '11px ' + getComputedStyle(document.body).fontFamily;
    pen.lineWidth = 1;
    pen.setLineDash([]);
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    for (let part = 0; part <= 4; part += 1) {
      const at = Math.round(y((top * part) / 4)) + 0.5;
      pen.strokeStyle = colour(part === 0 ? '--quiet' : '--grid');
      pen.beginPath();
      pen.moveTo(MARGIN.left, at);
      pen.lineTo(width - MARGIN.right, at);
      pen.stroke();
      pen.fillStyle = colour('--quiet');
      if (part % 2 === 0 || part === 4) pen.fillText(short((top * part) / 4), MARGIN.left - 6, at);
    }
    pen.textBaseline = 'alphabetic';
    // What was now when the connection was lost is now no more.
    const end = document.body.classList.contains('is-lost') ? new Date(last).toLocaleTimeString('en-GB') : 'now';
    const isNarrow = inner.width < 360;
    for (let minute = isNarrow ? 4 : 5; minute >= 0; minute -= isNarrow ? 2 : 1) {
      const at = x(last - minute * 60_000);
      pen.textAlign = minute === 5 ? 'left' : minute === 0 ? 'right' : 'center';
      pen.fillText(minute === 0 ? end : `−${minute} min`, at, height - 5);
    }

    this.lines.forEach((line, index) => {
      pen.strokeStyle = colour(line.colour);
      pen.lineWidth = 1.75;
      pen.lineJoin = 'round';
      pen.setLineDash(DASHES[index]);
      pen.beginPath();
      let before = null;
      times.forEach((time, place) => {
        const value = this.values[index][place];
        if (value === null || value === undefined || time < last - SPAN_MS) {
          before = null;
          return;
        }
        if (before === null || time - before > GAP_MS) {
          // One by itself would be no line: it gets a dash of its own.
          pen.moveTo(x(time) - 1, y(value));
        }
        pen.lineTo(x(time), y(value));
        before = time;
      });
      pen.stroke();
    });

    const read = this.index();
    if (read !== null) {
      pen.setLineDash([]);
      pen.lineWidth = 1;
      pen.strokeStyle = colour('--ink');
      const at = Math.round(x(times[read])) + 0.5;
      pen.beginPath();
      pen.moveTo(at, MARGIN.top);
      pen.lineTo(at, height - MARGIN.bottom);
      pen.stroke();
    }
    this.tell(read ?? times.length - 1, read !== null);
  }

  tell(place, isRead) {
    const said = this.lines.map((line, index) => {
      const value = this.values[index][place];
      const text = value === null || value === undefined ? '–' : short(value);
      if (this.figures[index].textContent !== text) this.figures[index].textContent = text;
      return `${line.name} ${text === '–' ? 'none' : text}`;
    });
    const when = isRead ? new Date(this.times[place]).toLocaleTimeString('en-GB') : '';
    if (this.when.textContent !== when) this.when.textContent = when;
    this.canvas.setAttribute('aria-label', `${this.label}, the last five minutes; ${when || 'now'}: ${said.join(', ')}. Arrow keys read it.`);
  }
}

/** The piece of line that a legend shows. */
function sample(colour, dash) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('width', '22');
  svg.setAttribute('height', '8');
  svg.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  for (const [name, value] of Object.entries({ x1: 0, x2: 22, y1: 4, y2: 4, 'stroke-width': 2.5, 'stroke-dasharray': dash.join(' ') })) {
    line.setAttribute(name, value);
  }
  line.style.stroke = `var(${colour})`;
  svg.append(line);
  return svg;
}
