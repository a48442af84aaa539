// Charts of the last ten minutes, as SVG. A series has the class of its name, by which the
// style sheet colors it, as it colors that outcome elsewhere.

import { clock } from './text.js'
import { history } from './source.js'

const [LEFT, BOTTOM, TOP, RIGHT] = [52, 18, 8, 4]
const all = []
/** The place in the history that the pointer is at, in any chart. */
let pointed = null

function svg (name, attributes = {}, text = '') {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.textContent = text
  return made
}

/** The places without a gap between them, where there is a number. */
function runs (values) {
  const found = []
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) return
    if (at > 0 && Number.isFinite(values[at - 1])) found.at(-1).push(at)
    else found.push([at])
  })
  return found
}

/** The least number at or above a value that is 1, 2 or 5 times a power of ten. */
function round (value) {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 5, 10].map((step) => step * power).find((size) => size >= value * 0.9999) ?? value
}

/**
 * A chart of series (their names in the history). `format` is the text of a value. Options:
 * `stacked` draws them on each other, `log` has a logarithmic scale, `top` names a series
 * whose last value is the top of the scale.
 */
export class Chart {
  constructor (place, label, series, format, options = {}) {
    Object.assign(this, { place, series, format, options })
    this.canvas = svg('svg', { role: 'img', 'aria-label': label })
    place.append(this.canvas)
    const point = (event) => {
      const x = event.clientX - this.canvas.getBoundingClientRect().left
      const time = this.now() - this.span() * (1 - (x - LEFT) / (this.width - LEFT - RIGHT))
      pointed = history.times.findLastIndex((own) => own <= time + 1)
      for (const chart of all) chart.draw()
    }
    this.canvas.addEventListener('pointermove', point)
    this.canvas.addEventListener('pointerleave', () => {
      pointed = null
      for (const chart of all) chart.draw()
    })
    new ResizeObserver(() => this.draw()).observe(place)
    all.push(this)
  }

  now () {
    return history.times.at(-1) ?? 0
  }

  /** The seconds that are shown: ten minutes, and less while there is less to show. */
  span () {
    return [120, 300].find((span) => this.now() - (history.times[0] ?? 0) <= span) ?? 600
  }

  draw () {
    const { clientWidth: width, clientHeight: height } = this.place
    if (!width || !height) return
    this.width = width
    this.canvas.setAttribute('viewBox', `0 0 ${width} ${height}`)
    const values = this.series.map((name) => history.series[name] ?? history.times.map(() => null))
    const heights = this.options.stacked ? this.stack(values) : values
    const parts = []
    const known = heights.flat().filter((value) => value > 0)
    const [low, high, ticks] = known.length ? this.scale(known) : [0.1, 1, []]
    if (!known.length) parts.push(svg('text', { x: width / 2, y: height / 2, 'text-anchor': 'middle' }, 'none in this time'))
    const place = this.options.log ? Math.log10 : (value) => value
    const y = (value) => {
      const share = (place(Math.max(value, low)) - place(low)) / (place(high) - place(low))
      return TOP + (height - TOP - BOTTOM) * (1 - Math.min(share, 1))
    }
    const span = this.span()
    const x = (time) => LEFT + (width - LEFT - RIGHT) * (1 - (this.now() - time) / span)
    parts.push(...ticks.flatMap((tick) => [
      svg('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      svg('text', { x: LEFT - 6, y: y(tick) + 4, 'text-anchor': 'end' }, this.format(tick))
    ]))
    for (const [ago, anchor, text] of [[span, 'start', `${span / 60} min ago`], [span / 2, 'middle', `${span / 120} min ago`], [0, 'end', 'now']]) {
      parts.push(svg('text', { x: x(this.now() - ago), y: height - 3, 'text-anchor': anchor }, text))
    }
    const point = (at, value) => `${x(history.times[at]).toFixed(1)} ${y(value).toFixed(1)}`
    heights.forEach((own, number) => {
      const name = this.series[number]
      for (const run of runs(own)) {
        const line = run.map((at) => point(at, own[at]))
        if (!this.options.log) {
          const below = this.options.stacked && number ? heights[number - 1] : null
          const back = run.map((at) => point(at, below ? below[at] : low)).reverse()
          parts.push(svg('path', { class: `area ${name}`, d: `M${[...line, ...back].join('L')}Z` }))
        }
        // A point alone is a dot.
        if (run.some((at) => values[number][at] > 0)) parts.push(svg('path', { class: `line ${name}`, d: `M${line[0]}h0L${line.join('L')}` }))
      }
    })
    if (pointed !== null && pointed >= 0 && pointed < history.times.length) {
      const at = x(history.times[pointed])
      const shown = this.series.map((name, number) => [name, values[number][pointed]]).filter(([, value]) => value)
      const text = [clock(new Date(history.times[pointed] * 1000)), ...shown.map(([name, value]) => `${name.replace(/_.*/, '')} ${this.format(value)}`)].join('  ')
      parts.push(svg('line', { class: 'pointer', x1: at, x2: at, y1: TOP, y2: height - BOTTOM }))
      parts.push(svg('text', { class: 'readout', x: width - RIGHT, y: TOP + 8, 'text-anchor': 'end' }, text))
    }
    this.canvas.replaceChildren(...parts)
  }

  /** Each series on those before it. */
  stack (values) {
    let below = history.times.map(() => 0)
    return values.map((own) => {
      below = own.map((value, at) => (value === null ? null : below[at] + value))
      return below
    })
  }

  /** The ends of the scale, and what is labelled. */
  scale (values) {
    if (this.options.log) {
      const low = Math.max(10 ** Math.floor(Math.log10(Math.min(...values))), 0.01)
      const highest = Math.max(...values, low * 2)
      const step = highest / low > 1000 ? 100 : 10
      const ticks = [low]
      while (ticks.at(-1) < highest) ticks.push(ticks.at(-1) * step)
      return [low, ticks.at(-1), ticks]
    }
    const high = history.series[this.options.top]?.at(-1) || round(Math.max(...values))
    return [0, high, [0, high / 2, high]]
  }
}

/** Draws the new points. */
export function updateCharts () {
  for (const chart of all) chart.draw()
}
