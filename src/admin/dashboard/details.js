// The folded parts: tables filled from /status. Cells are changed in place, so that what is
// selected or focused stays so.

import { grouped, RESULTS, tips } from './overview.js'
import { ago, bytes, byId, count, duration, element, list, millis, percent, plain, setText, words } from './text.js'

const text = (title, read, more) => ({ title, format: plain, read, ...more })
const number = (title, format, read, more) => ({ title, format, read, kind: 'number', ...more })
const long = (title, read, more) => text(title, read, { kind: 'text', ...more })
const hasTone = (good) => (row) => (good(row) ? 'good' : 'bad')

/** A table with a caption; it is hidden without rows. */
class Table {
  constructor (place, caption, columns, rows) {
    Object.assign(this, { columns, rows, body: element('tbody') })
    const head = columns.map(({ title, kind = '' }) => element('th', { scope: 'col', class: kind }, title))
    const table = element('table', {}, element('caption', {}, caption), element('thead', {}, element('tr', {}, ...head)), this.body)
    // Wide tables scroll by the keyboard too.
    this.head = table.tHead.rows[0]
    this.box = element('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': caption }, table)
    byId(place).append(this.box)
  }

  fill (status) {
    const rows = list(this.rows(status))
    this.box.hidden = rows.length === 0
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1)
    while (this.body.rows.length < rows.length) {
      const cells = this.columns.map(({ kind = '', link }) => element('td', { class: kind }, ...(link ? [element('a')] : [])))
      this.body.append(element('tr', {}, ...cells))
    }
    rows.forEach((row, at) => this.columns.forEach((column, place) => fillCell(this.body.rows[at].cells[place], column, row)))
    // A column without a value is not shown.
    this.columns.forEach((_, place) => {
      const cells = [...this.body.rows].map((row) => row.cells[place])
      const isEmpty = cells.every((cell) => cell.textContent === '–')
      for (const cell of [this.head.cells[place], ...cells]) cell.hidden = isEmpty
    })
  }
}

function fillCell (cell, { format, read, link, tone, kind = '' }, row) {
  const target = link ? cell.firstElementChild : cell
  setText(target, format(read(row)))
  if (tone) cell.className = `${kind} ${tone(row)}`
  const explained = link?.(row)
  if (explained) target.href = `#explain=${encodeURIComponent(explained)}`
  else if (link) target.removeAttribute('href')
}

const upstreams = (status) => Object.values(status.upstreams ?? {})
/** Rows of each upstream, with its name where there are several. */
const ofEach = (rows) => (status) => upstreams(status).flatMap((upstream, _, all) => rows(upstream)
  .map((row) => ({ ...row, upstream: all.length > 1 ? upstream.name : null })))

const STORED = ['hit', 'disk', 'shared']
const ASKED = ['miss', 'collapsed', 'bypass']

/** What came of requests, as charts have it. */
function resultOf ({ outcome, class: status }) {
  if (status === '5xx') return 'failed'
  return STORED.includes(outcome) ? 'hit' : ASKED.includes(outcome) ? 'miss' : outcome
}

/** Requests by route, and what came of them. */
function routes (status) {
  return grouped(list(status.requests), (row) => row.route ?? 'none').map(({ name, rows }) => {
    const sum = (wanted) => rows.filter(wanted).reduce((all, row) => all + row.requests, 0)
    const results = RESULTS.map(([result]) => [result, sum((row) => resultOf(row) === result)])
    return { route: name, all: sum(() => true), ...Object.fromEntries(results) }
  }).sort((one, other) => other.all - one.all)
}

/** The last errors by client and reason, the most first. */
function errors (status) {
  const groups = grouped(list(status.errors), (error) => `${error.client} ${error.reason}`)
  return groups.map(({ rows }) => ({ ...rows[0], errors: rows.length }))
}

function failure ({ last_failure: last }) {
  if (!last) return null
  const often = last.in_a_row > 1 ? `, ${last.in_a_row} in a row` : ''
  return `${ago(last.ago_seconds)}${often}: ${words(last.reason)}: ${last.cause}`
}

const NOT_SENT = { failed: 'failed', over_budget: 'no budget was left', no_slot: 'too many were in flight', breaker_open: 'the upstream does not answer', throttled: 'the upstream wants a pause', key_refused: 'the upstream refuses the API key' }
const PURPOSES = { probe: 'probes', miss: 'misses', revalidation: 'revalidation', retry: 'retries', 'key-check': 'checks of keys', 'block-check': 'checks for reorgs' }

/** What is used of the process, as pairs. */
function facts (status) {
  const { process, cache, connections, state_directory: state, shared, reload, unsent } = status
  const rows = [
    ['Version', `${status.version} (${status.commit}, rustc ${status.rustc})`],
    ['Configuration', status.config],
    ['Memory', process && bytes(process.resident_memory_bytes)],
    ['Processor time', process && duration(process.cpu_seconds)],
    ['Open files', process && `${count(process.open_fds)} of ${count(process.max_fds)}`],
    ['Stored answers', `${count(cache.entries)} in ${bytes(cache.bytes)} of ${bytes(cache.max_bytes)}`],
    ['Connections', `${count(connections.open)} open, ${count(connections.accepted)} since the start`],
    ['Connections turned away', connections.turned_away + connections.turned_away_client],
    ['Answers that clients have not read yet', unsent.bytes && `${bytes(unsent.bytes)} of ${bytes(unsent.max_bytes)}`],
    ['State directory', state?.answers && `${bytes(state.answers.bytes)} of ${bytes(state.answers.max_bytes)}`],
    ['Replicas', shared && `${count(shared.replicas)}${shared.engine ? `; their engine ${shared.engine.is_up ? 'answers' : 'does not answer'}` : ''}`],
    ['Purges', status.chain.purges],
    ['Reloads', (reload.done || reload.refused) && `${count(reload.done)} done, ${count(reload.refused)} refused`],
    ['Last reload', reload.ok ? null : list(reload.last?.problems)],
    ['Log lines dropped', status.log_lines_dropped.stderr + status.log_lines_dropped.stdout]
  ]
  return rows.filter(([, value]) => value)
}

function certificates (status) {
  return list(status.listeners).flatMap((listener) => list(listener.tls?.certificates).map((certificate) => ({ ...certificate, listener: listener.address })))
}

// The part, the caption, the columns, and the rows of a status.
const TABLES = [
  ['routes', 'Requests', [
    text('Route', (row) => row.route),
    number('Requests', count, (row) => row.all),
    number('Hit ratio', percent, (row) => (row.hit + row.stale) / (row.hit + row.stale + row.miss + row.failed)),
    ...RESULTS.map(([name, label]) => number(label, count, (row) => row[name], { tone: (row) => (row[name] ? name : 'quiet') }))
  ], routes],
  ['routes', 'Time to answer', [
    text('Route', (row) => row.route ?? 'none'),
    text('Outcome', (row) => row.outcome),
    number('Requests', count, (row) => row.count),
    ...['p50', 'p90', 'p99'].map((name) => number(name === 'p50' ? 'median' : name, millis, (row) => row[`${name}_ms`]))
  ], (status) => status.latency],
  ['upstreams', 'Base URLs', [
    text('Upstream', (row) => row.upstream),
    text('Base URL', (row) => row.url),
    text('Condition', (row) => `${row.condition}${row.selected ? ', in use' : ''}`, { tone: hasTone((row) => row.condition === 'sound') }),
    number('In flight', count, (row) => row.in_flight),
    number('Sent', count, (row) => row.sent),
    number('Failed', count, (row) => row.failed, { tone: (row) => (row.failed ? 'failed' : 'quiet') }),
    number('Blocks behind', count, (row) => row.lag_blocks),
    long('Last failure', failure)
  ], ofEach(({ endpoints }) => endpoints)],
  ['upstreams', 'Keys', [
    text('Upstream', (row) => row.upstream),
    text('Key', (row) => row.name),
    text('State', (row) => row.state, { tone: hasTone((row) => row.state === 'ready') }),
    number('Left this minute', count, (row) => row.budget_left),
    number('Of', count, (row) => row.budget),
    number('Kept free', count, (row) => row.kept_for_probes),
    number('Rests for', duration, (row) => row.unusable_seconds || NaN)
  ], ofEach(({ keys }) => keys.filter((key) => key.budget))],
  ['upstreams', 'Chain tips', [
    text('Tip', (row) => row.name),
    text('Known', (row) => row.known, { tone: hasTone((row) => row.known) }),
    number('Height', count, (row) => row.height),
    number('Moved', ago, (row) => row.moved_seconds_ago),
    number('Reorgs', count, (row) => row.reorgs),
    number('Asked', count, (row) => row.probes),
    number('No answer', count, (row) => row.failures),
    long('Last error', (row) => row.trouble)
  ], tips],
  ['upstreams', 'Not sent, or failed', [
    text('Upstream', (row) => row.upstream),
    text('Why', (row) => NOT_SENT[row.result]),
    number('Requests', count, (row) => row.requests)
  ], ofEach(({ results }) => Object.keys(NOT_SENT).filter((result) => results[result] > 0)
    .map((result) => ({ result, requests: results[result] })))],
  ['clients', 'Who spends the budget', [
    text('Client', (row) => row.client ?? 'ordgate itself'),
    text('Upstream', (row) => row.upstream),
    number('Requests lately', count, (row) => row.recent),
    number('Waiting', count, (row) => row.waiting),
    number('In flight', count, (row) => row.in_flight)
  ], ofEach(({ heaviest_clients: clients }) => clients)],
  ['clients', 'What it is spent on', [
    text('Upstream', (row) => row.upstream),
    text('Route', (row) => (row.route === 'none' ? '–' : row.route)),
    text('For', (row) => PURPOSES[row.reason] ?? row.reason),
    number('Requests since the start', count, (row) => row.requests)
  ], ofEach(({ sent_for: sent }) => sent.toSorted((one, other) => other.requests - one.requests))],
  ['clients', 'Clients with tokens', [
    text('Name', (row) => row.name),
    number('Requests', count, (row) => row.requests),
    number('Over their limit', count, (row) => row.limited),
    number('Requests per minute', count, (row) => row.requests_per_minute),
    number('Tokens', count, (row) => row.tokens),
    text('Expires', (row) => row.expires, { tone: (row) => (row.has_expired ? 'bad' : '') })
  ], (status) => status.client_tokens?.busiest],
  ['errors', 'The last 64 errors, by reason and client', [
    number('Errors', count, (row) => row.errors),
    text('Reason', (row) => words(row.reason)),
    text('Client', (row) => row.client),
    number('Status', plain, (row) => row.status),
    number('Last', ago, (row) => row.ago_seconds),
    long('Last request', (row) => `${row.method} ${row.path}`, { link: (row) => row.url && row.path }),
    long('What the client was told', (row) => row.cause)
  ], errors],
  ['errors', 'Refused and failed since the start', [
    text('Reason', ([reason]) => words(reason)),
    number('Requests', count, ([, requests]) => requests)
  ], (status) => Object.entries(status.refused ?? {}).sort((one, other) => other[1] - one[1])],
  ['system', 'Process', [
    text('', ([title]) => title),
    long('', ([, value]) => value)
  ], facts],
  ['system', 'Certificates', [
    text('Listener', (row) => row.listener),
    long('Names', (row) => row.names),
    text('Expires', (row) => row.not_after),
    number('Days left', plain, (row) => row.days, { tone: hasTone((row) => row.days >= 14) }),
    long('File', (row) => row.chain ?? 'made by ordgate'),
    long('Changed files are not used', (row) => row.refused)
  ], certificates]
]

// What a part has, in a word beside its name.
const NOTES = {
  routes: (status) => `${count(list(status.requests).reduce((sum, row) => sum + row.requests, 0))} requests since the start`,
  upstreams: (status) => `${count(upstreams(status).reduce((sum, one) => sum + one.sent, 0))} requests sent since the start`,
  errors: (status) => `${count(list(status.requests).filter((row) => ['refused', 'failed'].includes(resultOf(row))).reduce((sum, row) => sum + row.requests, 0))} refused or failed since the start`,
  system: (status) => (status.process ? `${bytes(status.process.resident_memory_bytes)} of memory` : '')
}

let tables = []

/** Makes the tables, without values. */
export function makeDetails () {
  tables = TABLES.map((table) => new Table(...table))
  for (const part of Object.keys(NOTES)) byId(part).firstElementChild.append(element('span', { class: 'hint' }))
}

/** Shows a status. */
export function showDetails (status) {
  for (const table of tables) table.fill(status)
  for (const [part, note] of Object.entries(NOTES)) setText(byId(part).querySelector('summary span'), note(status))
}
