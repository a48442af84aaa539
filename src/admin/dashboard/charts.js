// The charts, drawn by uPlot from the history.

import { amount, clock, count, element, percent, setText } from './text.js'
import { history } from './source.js'

/* global uPlot */

const requests = (value) => `${amount(value)}/s`
const mebibytes = (value) => (value === null ? '–' : `${amount(value)} MiB`)
const milliseconds = (value) => (value === null ? '–' : `${amount(value)} ms`)

// Place, title, format of values, and the series: name in the history, label, color.
// Series that were never above zero are left out where `quiet` is set.
const CHARTS = [
  ['traffic', 'Requests by outcome', requests, [
    ['hit', 'hit', 0], ['stale', 'stale', 1], ['miss', 'miss', 2], ['collapsed', 'collapsed', 3],
    ['bypass', 'bypass', 4], ['disk', 'disk', 5], ['shared', 'shared', 6], ['refused', 'refused', 7], ['other', 'other', 4]
  ], { quiet: true }],
  ['traffic', 'Hit ratio', percent, [['hit_ratio', 'answered without the upstream', 0]], { range: [0, 1] }],
  ['traffic', 'Latency', milliseconds, [['p50_ms', 'median', 0], ['p99_ms', 'p99', 2]]],
  ['upstream', 'Upstream requests', requests, [['upstream_sent', 'sent', 0], ['upstream_failed', 'failed', 2]]],
  ['upstream', 'Budget of the keys', count, [['budget_left', 'left in this minute', 5], ['budget', 'limit', 4]], { whole: true }],
  ['upstream', 'Queue', count, [['queue', 'waiting', 1], ['in_flight', 'in flight', 0]], { whole: true }],
  ['upstream', 'Tip', count, [['tip_height', 'height', 3]], { exact: true, whole: true }],
  ['system', 'Memory', mebibytes, [
    ['rss_mib', 'process', 2], ['cache_mib', 'stored answers', 0]
  ]],
  ['system', 'Processor', percent, [['cpu', 'of one core', 1]], { least: 0.05 }],
  ['system', 'Connections', count, [['connections', 'open', 0]], { whole: true }]
]

// Steps of an axis on which fractions mean nothing.
const WHOLE = [1, 2, 5].flatMap((step) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((size) => step * size)).sort((one, other) => one - other)

const drawn = []

function color (number) {
  const style = getComputedStyle(document.documentElement)
  return style.getPropertyValue(typeof number === 'number' ? `--c${number}` : number).trim()
}

class Chart {
  constructor ([place, title, format, series, options = {}]) {
    this.format = format
    this.series = series
    this.options = options
    const id = `chart-${drawn.length}`
    this.legend = element('ul', { class: 'legend' })
    this.plot = element('div', { class: 'plot', 'aria-hidden': 'true' })
    this.figure = element('figure', { 'aria-labelledby': id }, element('figcaption', { id }, title), this.legend, this.plot)
    this.values = series.map(([, label, number]) => {
      const value = element('b')
      const item = element('li', {}, `${label} `, value)
      item.style.setProperty('--color', `var(--c${number})`)
      this.legend.append(item)
      return { item, value }
    })
    document.getElementById(`charts-${place}`).append(this.figure)
    this.width = 0
    new ResizeObserver(() => this.resize()).observe(this.plot)
  }

  data () {
    const missing = history.times.map(() => null)
    return [history.times, ...this.series.map(([name]) => history.series[name] ?? missing)]
  }

  resize () {
    const width = Math.floor(this.plot.clientWidth)
    if (!width || width === this.width) return
    this.width = width
    if (this.chart) this.chart.setSize({ width, height: 150 })
    else this.draw()
  }

  /** Draws anew, with the colors of the present scheme. */
  draw () {
    this.chart?.destroy()
    this.plot.replaceChildren()
    const axis = { stroke: color('--quiet'), grid: { stroke: color('--grid'), width: 1 }, ticks: { stroke: color('--grid'), width: 1 }, font: '11px system-ui' }
    const { format, options } = this
    const least = options.least ?? 1
    const range = options.range ?? (options.exact ? (_, low, high) => [(low ?? 0) - 1, (high ?? 0) + 1] : (_, low, high) => [0, Math.max(high ?? 0, least) * 1.05])
    this.chart = new uPlot({
      width: this.width,
      height: 150,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 5 }, sync: { key: 'ordgate' } },
      scales: { y: { range } },
      series: [{}, ...this.series.map(([, label, number]) => ({ label, stroke: color(number), width: 1.5, points: { show: false } }))],
      axes: [
        { ...axis, size: 24, space: 60, values: (_, ticks) => ticks.map((tick) => clock(new Date(tick * 1000)).slice(0, 5)) },
        { ...axis, size: 62, incrs: options.whole ? WHOLE : undefined, values: (_, ticks) => ticks.map((tick) => format(tick)) }
      ],
      hooks: { setCursor: [() => this.label()] }
    }, this.data(), this.plot)
    this.label()
  }

  /** The values at the cursor, else the latest. */
  label () {
    const at = this.chart?.cursor.idx ?? history.times.length - 1
    this.series.forEach(([name], place) => {
      const { item, value } = this.values[place]
      const points = history.series[name]
      const isQuiet = this.options.quiet && place > 0 && !points?.some((point) => point > 0)
      item.hidden = Boolean(isQuiet)
      if (this.chart && this.chart.series[place + 1].show === item.hidden) this.chart.setSeries(place + 1, { show: !item.hidden })
      const point = points?.[at] ?? null
      setText(value, point === null ? '–' : this.format(point))
    })
  }

  update () {
    // A figure without any number says nothing, such as the budget without a limit.
    this.figure.hidden = !this.series.some(([name]) => history.series[name]?.some((point) => point !== null))
    if (this.figure.hidden) return
    if (this.chart) {
      this.chart.setData(this.data())
      this.label()
    } else {
      this.resize()
    }
  }
}

/** Makes the charts' places; they are drawn with the first points. */
export function makeCharts () {
  for (const chart of CHARTS) drawn.push(new Chart(chart))
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    for (const chart of drawn) if (chart.chart) chart.draw()
  })
}

/** Shows the new points. */
export function updateCharts () {
  for (const chart of drawn) chart.update()
}
