// The tiles and tables, filled from /status. Cells are changed in place, so that what
// is selected or focused stays so.

import { amount, bytes, count, duration, element, millis, percent, plain, setText, words } from './text.js'
import { history } from './source.js'

const number = (title, text, read, more) => ({ title, text, read, isNumber: true, ...more })
const name = (title, read, more) => ({ title, text: plain, read, ...more })

/** A table with a caption, or a sentence where it has no rows. */
class Table {
  constructor (place, caption, columns, empty) {
    this.columns = columns
    this.body = element('tbody')
    this.none = element('p', { class: 'none' }, empty)
    const head = columns.map(({ title, isNumber }) => element('th', { scope: 'col', class: isNumber ? 'number' : '' }, title))
    this.table = element('table', {}, element('caption', {}, caption), element('thead', {}, element('tr', {}, ...head)), this.body)
    // Wide tables scroll by the keyboard too.
    this.box = element('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': caption }, this.table, this.none)
    document.getElementById(`tables-${place}`).append(this.box)
  }

  fill (rows) {
    // What this process does not have is not shown.
    this.box.hidden = rows === undefined
    if (rows === undefined) return
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1)
    while (this.body.rows.length < rows.length) this.body.append(this.emptyRow())
    rows.forEach((row, at) => this.columns.forEach((column, place) => fillCell(this.body.rows[at].cells[place], column, row)))
    this.none.hidden = rows.length > 0
    this.table.tHead.hidden = rows.length === 0
  }

  emptyRow () {
    const cells = this.columns.map(({ isNumber, isText, isLink }) => {
      const cell = element('td', { class: isNumber ? 'number' : isText ? 'text' : '' })
      if (isLink) cell.append(element('a', {}))
      return cell
    })
    return element('tr', {}, ...cells)
  }
}

function fillCell (cell, { text, read, isLink, link: linked = read, tone }, row) {
  const value = read(row)
  const target = isLink ? cell.firstElementChild : cell
  setText(target, text(value))
  if (isLink) {
    const explained = linked(row)
    const link = explained ? `#explain=${encodeURIComponent(explained)}` : null
    if (link === null) target.removeAttribute('href')
    else if (target.getAttribute('href') !== link) target.setAttribute('href', link)
  }
  if (tone) {
    const [good, bad, warn] = ['good', 'bad', 'warn'].map((one) => tone(row) === one)
    cell.classList.toggle('good', good)
    cell.classList.toggle('bad', bad)
    cell.classList.toggle('warn', warn)
  }
}

const list = (value) => (Array.isArray(value) ? value : [])
const upstreams = (status) => Object.values(status.upstreams ?? {})
const STORED = ['hit', 'stale', 'disk', 'shared']
const OUTCOMES = ['hit', 'stale', 'miss', 'collapsed', 'bypass', 'disk', 'shared', 'refused']

/** The share of answers without the upstream. */
function hitRatio (of) {
  const answered = OUTCOMES.filter((outcome) => outcome !== 'refused').reduce((sum, outcome) => sum + (of[outcome] ?? 0), 0)
  return answered ? STORED.reduce((sum, outcome) => sum + (of[outcome] ?? 0), 0) / answered : NaN
}

/** Requests by route, with the latencies where the process measures them. */
function routes (status) {
  const rows = new Map()
  const row = (route) => {
    const key = route ?? 'none'
    if (!rows.has(key)) rows.set(key, { route: key, all: 0, errors: 0 })
    return rows.get(key)
  }
  for (const { route, outcome, class: kind, requests } of list(status.requests)) {
    const of = row(route)
    of[outcome] = (of[outcome] ?? 0) + requests
    of.all += requests
    if (kind === '5xx') of.errors += requests
  }
  return [...rows.values()].sort((one, other) => other.all - one.all)
}

function endpoints (status) {
  return upstreams(status).flatMap((upstream) => list(upstream.endpoints).map((endpoint) => ({ ...endpoint, upstream: upstream.name })))
}

function keys (status) {
  return upstreams(status).flatMap((upstream) => list(upstream.keys).map((key) => ({ ...key, upstream: upstream.name })))
}

function sent (status) {
  return upstreams(status).flatMap((upstream) => list(upstream.sent_for)
    .map((row) => ({ ...row, upstream: upstream.name })))
}

function certificates (status) {
  const rows = list(status.listeners).flatMap((listener) => list(listener.tls?.certificates)
    .map((certificate) => ({ ...certificate, listener: plain(listener.address) })))
  return rows.length ? rows : undefined
}

function failure (endpoint) {
  const last = endpoint.last_failure
  if (!last) return null
  const often = last.in_a_row > 1 ? `, ${last.in_a_row} in a row` : ''
  return `${duration(last.ago_seconds)} ago${often}: ${words(plain(last.reason))}: ${plain(last.cause)}`
}

const milliseconds = (member) => number(words(member.replace('_ms', '')), millis, (row) => row[member])
const url = (title, read, link) => ({ title, text: plain, read, link, isLink: true, isText: true })

// The place, the caption, the columns, the rows of a status, and the text for none.
const TABLES = [
  ['traffic', 'Routes', [
    name('Route', (row) => row.route),
    number('Requests', count, (row) => row.all),
    number('Hit ratio', percent, hitRatio),
    ...OUTCOMES.map((outcome) => number(outcome, count, (row) => row[outcome] ?? 0)),
    // Documents of ordgate's own, and preflights.
    number('other', count, (row) => row.all - OUTCOMES.reduce((sum, outcome) => sum + (row[outcome] ?? 0), 0)),
    number('5xx', count, (row) => row.errors)
  ], routes, 'No requests yet'],
  ['traffic', 'Latency by route and outcome', [
    name('Route', (row) => row.route ?? 'none'),
    name('Outcome', (row) => row.outcome),
    number('Requests', count, (row) => row.count),
    ...['p50_ms', 'p90_ms', 'p99_ms'].map(milliseconds)
  ], (status) => list(status.latency), 'No requests yet'],
  ['upstream', 'Keys', [
    name('Upstream', (row) => row.upstream),
    name('Key', (row) => row.name),
    name('State', (row) => row.state, { tone: (row) => (row.state === 'ready' ? 'good' : 'bad') }),
    number('Left in this minute', count, (row) => row.budget_left),
    number('Kept for probes', count, (row) => row.kept_for_probes),
    number('Limit', count, (row) => row.budget),
    number('Unusable for', duration, (row) => row.unusable_seconds)
  ], keys, 'No keys'],
  ['upstream', 'What spends the budget', [
    name('Upstream', (row) => row.upstream),
    name('Route', (row) => row.route ?? 'none'),
    name('Reason', (row) => words(row.reason ?? '')),
    number('Requests sent', count, (row) => row.requests)
  ], sent, 'Nothing was sent yet'],
  ['upstream', 'Endpoints', [
    name('Upstream', (row) => row.upstream),
    name('Endpoint', (row) => row.url),
    name('In use', (row) => row.selected, { tone: (row) => (row.selected ? 'good' : '') }),
    name('Condition', (row) => row.condition, { tone: (row) => (row.condition === 'sound' ? 'good' : 'bad') }),
    number('In flight', count, (row) => row.in_flight),
    number('Sent', count, (row) => row.sent),
    number('Failed', count, (row) => row.failed),
    number('Blocks behind', count, (row) => row.lag_blocks),
    name('Last failure', failure, { isText: true })
  ], endpoints, 'No endpoints'],
  ['upstream', 'Tips', [
    name('Tip', (row) => row.name),
    name('Known', (row) => row.known, { tone: (row) => (row.known ? 'good' : 'bad') }),
    number('Height', plainNumber, (row) => row.height),
    number('Since it moved', duration, (row) => row.moved_seconds_ago),
    number('Epoch', count, (row) => row.epoch),
    number('Reorgs', count, (row) => row.reorgs, { tone: (row) => (row.reorgs > 0 ? 'warn' : '') }),
    number('Since it was confirmed', duration, (row) => row.confirmed_seconds_ago),
    number('Probes', count, (row) => row.probes),
    number('Failed', count, (row) => row.failures),
    name('Block', (row) => row.hash, { isText: true }),
    name('Trouble', (row) => row.trouble, { isText: true })
  ], (status) => list(status.chain?.tips), 'No tips'],
  ['clients', 'Clients that use the budget most', [
    name('Client', (row) => row.client ?? 'ordgate itself'),
    name('Upstream', (row) => row.upstream),
    number('Recent use', amount, (row) => row.recent),
    number('Waiting', count, (row) => row.waiting),
    number('In flight', count, (row) => row.in_flight)
  ], (status) => upstreams(status).flatMap((upstream) => list(upstream.heaviest_clients)
    .map((client) => ({ ...client, upstream: upstream.name }))), 'None lately'],
  ['clients', 'Clients with tokens', [
    name('Name', (row) => row.name),
    number('Requests', count, (row) => row.requests),
    number('Limited', count, (row) => row.limited),
    number('Requests per minute', count, (row) => row.requests_per_minute),
    number('Tokens', count, (row) => row.tokens),
    name('Expires', (row) => row.expires)
  ], (status) => status.client_tokens?.busiest, 'None'],
  ['errors', 'Last errors', [
    name('Time', (row) => row.at),
    name('Client', (row) => row.client),
    name('Method', (row) => row.method),
    number('Status', plain, (row) => row.status),
    name('Reason', (row) => [row.reason, row.cause].filter((text) => text).join(': '), { isText: true }),
    url('Path (explains it)', (row) => row.path, (row) => row.path),
    name('Request', (row) => row.request_id)
  ], (status) => status.errors && list(status.errors).slice(0, 64), 'No errors'],
  ['errors', 'Refusals', [
    name('Reason', ([reason]) => words(reason)),
    number('Requests', count, ([, requests]) => requests)
  ], (status) => status.refused && Object.entries(status.refused).filter(([, requests]) => requests > 0), 'None'],
  ['errors', 'Not sent upstream, or failed', [
    name('Upstream', (row) => row.name),
    number('Failed', count, ({ results }) => results.failed),
    number('No budget', count, ({ results }) => results.over_budget),
    number('No slot', count, ({ results }) => results.no_slot),
    number('Breaker open', count, ({ results }) => results.breaker_open),
    number('Not retried', count, ({ results }) => results.unretried),
    number('Switches of endpoint', count, ({ results }) => results.switches)
  ], upstreams, 'No upstreams'],
  ['system', 'Certificates', [
    name('Listener', (row) => row.listener),
    name('Names', (row) => row.names, { isText: true }),
    name('Expires', (row) => row.not_after),
    number('Days left', plainNumber, (row) => row.days, { tone: (row) => (row.days < 14 ? 'bad' : 'good') }),
    name('File', (row) => row.chain ?? 'made by ordgate', { isText: true }),
    name('Changed files are not used', (row) => row.refused, { isText: true, tone: (row) => (row.refused ? 'bad' : '') })
  ], certificates, 'None']
]

/** A number without separators. */
function plainNumber (value) {
  return Number.isFinite(value) ? String(value) : '–'
}

// The tiles: title, and the text of a status.
const TILES = [
  ['Requests', (status) => count(list(status.requests).reduce((sum, row) => sum + row.requests, 0))],
  ['Hit ratio', (status) => {
    const sums = {}
    for (const { outcome, requests } of list(status.requests)) sums[outcome] = (sums[outcome] ?? 0) + requests
    return percent(hitRatio(sums))
  }],
  // Of the key with the least left.
  ['Budget left', () => {
    const [left, all] = ['budget_left', 'budget'].map((name) => history.series[name]?.at(-1))
    return Number.isFinite(all) ? `${count(left)} of ${count(all)}` : 'no limit'
  }],
  ['Sent upstream', (status) => count(upstreams(status).reduce((sum, one) => sum + one.sent, 0))],
  ['In flight, waiting', (status) => {
    const sum = (read) => upstreams(status).reduce((all, one) => all + (read(one) ?? 0), 0)
    return `${count(sum((one) => one.in_flight))}, ${count(sum((one) => one.queue))}`
  }],
  ['Connections', (status) => count(status.connections?.open)],
  ['Stored answers', (status) => `${count(status.cache?.entries)} in ${bytes(status.cache?.bytes)}`],
  ['Memory bound', (status) => bytes(status.cache?.max_bytes)],
  ['Unsent', (status) => bytes(status.unsent?.bytes)],
  ['Disk', (status) => {
    const answers = status.state_directory?.answers
    if (!answers) return 'not used'
    return answers.fault ? 'not used after an error' : `${bytes(answers.bytes)} of ${bytes(answers.max_bytes)}`
  }],
  ['Replicas', (status) => {
    if (!status.shared) return 'not used'
    const engine = status.shared.engine
    return `${count(status.shared.replicas)}, ${engine ? (engine.is_up ? 'engine answers' : 'engine away') : 'no engine'}`
  }],
  ['Purges', (status) => count(status.chain?.purges)],
  ['Failed targets not retried yet', (status) => count(status.remembered_errors)],
  ['Reloads', (status) => `${count(status.reload?.done)} done, ${count(status.reload?.refused)} refused`]
]

const tiles = []
const tables = []

/** Makes the tiles and tables, without values. */
export function makeTables () {
  for (const [title, read] of TILES) {
    const value = element('dd', {}, '–')
    document.getElementById('tiles').append(element('div', {}, element('dt', {}, title), value))
    tiles.push([value, read])
  }
  for (const [place, caption, columns, rows, empty] of TABLES) {
    tables.push([new Table(place, caption, columns, empty), rows])
  }
}

/** Shows a status. */
export function updateTables (status) {
  for (const [value, read] of tiles) setText(value, read(status))
  for (const [table, rows] of tables) table.fill(rows(status) || undefined)
  const { version, state, uptime_seconds: uptime, config, listen } = status
  setText(document.getElementById('about'), `${version}, ${state}, up ${duration(uptime)}, ${plain(listen)}, ${config}`)
}
