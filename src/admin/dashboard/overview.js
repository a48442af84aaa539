// The first screen: whether all is well, what clients get, how fast, the budget, and the chain.

import { Chart, updateCharts } from './charts.js'
import { history } from './source.js'
import { ago, amount, byId, count, duration, element, list, millis, percent, setText } from './text.js'

/** What comes of requests. Each has one color everywhere. */
export const RESULTS = [
  ['hit', 'hits', 'answered from what is stored and fresh'],
  ['stale', 'stale', 'answered with a stored answer that is not fresh any more'],
  ['miss', 'misses', 'answered by the upstream'],
  ['refused', 'refused', 'refused with a 4xx: invalid, no such path, no valid token, or over a limit'],
  ['failed', 'failed', 'answered with a 5xx']
]

const MINUTE = 60
const TEN_MINUTES = 600
// An indexer that reports the same block for so long has probably stopped.
const STUCK = 2 * 3600
const FEW_DAYS = 14

new Chart(byId('chart-results'), 'Requests a second, by what came of them', RESULTS.slice(0, 4).map(([name]) => name), amount, { stacked: true })
const failures = new Chart(byId('chart-failed'), 'Failed requests a second', ['failed'], amount)
new Chart(byId('chart-times'), 'Time to answer', ['p99_ms', 'p50_ms'], millis, { log: true })
const budgetChart = new Chart(byId('chart-budget'), 'What is left of the budget, or requests sent a second', ['budget_left'], amount, { top: 'budget' })

/** How many there were in the last `seconds`. */
function recent (name, seconds = MINUTE) {
  const from = (history.times.at(-1) ?? 0) - seconds
  return history.times.reduce((sum, time, at) => sum + (time > from ? (history.series[name]?.[at] ?? 0) * 2 : 0), 0)
}

/** The last number of a series in the last minute. */
function latest (name) {
  return history.series[name]?.slice(-30).findLast((value) => value !== null)
}

const upstreams = (status) => Object.values(status.upstreams ?? {})
/** The tips that are asked for: those that routes use. */
export const tips = (status) => list(status.chain?.tips).filter((tip) => tip.known !== null)
const isStuck = (tip) => tip.moved_seconds_ago > STUCK

/** Words with the article of what is meant: `the upstream`, or `the upstream runes` of several. */
function named (kind, name, all) {
  return all.length > 1 ? `the ${kind} ${name}` : `the ${kind}`
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1)
const inside = (text) => (/^[A-Z][a-z]/.test(text) ? text[0].toLowerCase() + text.slice(1) : text)

/** What is wrong: how bad, a sentence, and which part of the page has more. */
function problems (status) {
  const found = []
  const bad = (text, where) => found.push(['bad', text, where])
  const warn = (text, where) => found.push(['warn', text, where])
  if (status.state === 'draining') bad('ordgate is stopping', 'system')
  for (const why of list(status.not_ready)) bad(`not ready: ${why}`, 'upstreams')
  const all = RESULTS.reduce((sum, [name]) => sum + recent(name), 0)
  const failed = recent('failed')
  const effect = failed > 0 ? `${percent(failed / all)} of requests failed in the last minute` : 'clients get stored answers'
  const fail = failed / all >= 0.01 ? bad : warn
  const [why] = grouped(list(status.errors).filter((error) => error.ago_seconds <= MINUTE), (error) => error.reason)
  const down = []
  for (const upstream of upstreams(status)) {
    const name = named('upstream', upstream.name, upstreams(status))
    const isDown = upstream.endpoints.every(({ condition }) => condition === 'broken')
    if (isDown) {
      bad(`${name} ${CONDITIONS[upstream.endpoints[0].condition]}: ${effect}`, 'upstreams')
      down.push(upstream.name)
    }
    for (const { url, condition, selected } of isDown ? [] : upstream.endpoints) {
      if (CONDITIONS[condition]) warn(`the base URL ${url} ${CONDITIONS[condition]}${selected ? '' : '; requests go to another base URL'}`, 'upstreams')
    }
    const say = upstream.endpoints.some(({ selected, condition }) => selected && condition === 'refusing') ? bad : warn
    for (const key of upstream.keys) {
      if (key.state === 'quarantined') say(`${name} refuses ${key.name}`, 'upstreams')
      if (key.state === 'cooling') say(`${name} wants fewer requests, so ${key.name} rests for ${duration(key.unusable_seconds)}`, 'upstreams')
    }
  }
  const over = recent('over_budget')
  const { left, limit, kept } = budgetOf(status)
  if (over > 0 && why?.name === 'over_budget') {
    fail(`the budget is spent: ${effect}`, 'clients')
  } else if (over > 0) {
    warn(`the budget is spent: ${count(over)} requests could not be sent in the last minute`, 'clients')
  } else if (left - kept < limit * 0.05) {
    warn(`the budget is nearly spent: ${count(left - kept)} of ${count(limit)} requests are left for clients`, 'clients')
  }
  if (failed > 0 && !down.length && why?.name !== 'over_budget') fail(why ? `${effect}: ${inside(why.rows[0].cause.split(/[;,:(]/)[0])}` : effect, 'errors')
  if (status.state_directory?.spent?.unknown_seconds > 0) warn('API keys rest, since it is not known what was spent before the start', 'upstreams')
  for (const tip of tips(status).filter((tip) => !down.includes(tip.upstream))) {
    const name = named('tip of', tip.name, tips(status))
    if (tip.known_once && !tip.known) warn(`${name} is not known, so most answers are fresh for a second only`, 'upstreams')
    else if (isStuck(tip)) warn(`${name} has not moved for ${duration(tip.moved_seconds_ago)}: its indexer has probably stopped`, 'upstreams')
  }
  const stale = recent('stale')
  if (stale / all > 0.1) warn(`${percent(stale / all)} of the answers in the last minute were stale`, 'routes')
  if (status.reload?.ok === false) warn(`the last reload was refused: ${list(status.reload.last?.problems)[0] ?? ''}`, 'system')
  for (const certificate of list(status.listeners).flatMap((listener) => list(listener.tls?.certificates))) {
    if (certificate.days < FEW_DAYS) warn(`a certificate expires in ${certificate.days} days: ${list(certificate.names).join(', ')}`, 'system')
    if (certificate.refused) warn(`changed files of a certificate are not used: ${certificate.refused}`, 'system')
  }
  for (const [name, database] of Object.entries(status.state_directory ?? {})) {
    if (database?.fault) warn(`${name}.db is not used any more: ${database.fault}`, 'system')
  }
  if (status.shared?.engine?.is_up === false) warn('the engine of the replicas does not answer', 'system')
  const rank = ([tone]) => (tone === 'bad' ? 0 : 1)
  return found.sort((one, other) => rank(one) - rank(other))
}

const CONDITIONS = {
  lagging: 'is some blocks behind another base URL',
  wrong: 'gives no valid status: it fails, or is another server',
  broken: 'does not answer'
}

/** Rows by what `key` says of them, the largest group first. */
export function grouped (rows, key) {
  const groups = new Map()
  for (const row of rows) {
    const name = key(row)
    if (!groups.has(name)) groups.set(name, { name, rows: [] })
    groups.get(name).rows.push(row)
  }
  return [...groups.values()].sort((one, other) => other.rows.length - one.rows.length)
}

function showVerdict (status) {
  const [first, ...more] = problems(status)
  const isIdle = !RESULTS.some(([name]) => recent(name) > 0)
  const [tone, text, where] = first ?? ['good', isIdle ? 'all is well. No requests in the last minute' : 'all is well', null]
  const line = (words, part) => [`${sentence(words)}. `, ...(part ? [element('a', { href: `#${part}` }, `See ${part}`)] : [])]
  const key = JSON.stringify([tone, text, more])
  const place = byId('verdict')
  // Only a change is announced.
  if (place.dataset.shown === key) return
  place.dataset.shown = key
  place.className = tone
  byId('verdict-text').replaceChildren(...line(text, where))
  byId('verdict-more').replaceChildren(...more.slice(0, 2).map(([, also, part]) => element('li', {}, ...line(also, part))))
}

function showClients () {
  const sums = RESULTS.map(([name]) => recent(name))
  const all = sums.reduce((sum, one) => sum + one, 0)
  setText(byId('rate'), amount(all / Math.min(MINUTE, Math.max(2, history.times.length * 2))))
  const shown = RESULTS.map((result, at) => [...result, sums[at]]).filter(([name]) => recent(name, TEN_MINUTES) > 0)
  byId('shares').replaceChildren(...shown.map(([name, label, title, sum]) => element('li', { class: name, title }, `${label} `, element('b', {}, all ? percent(sum / all) : '–'))))
  failures.place.hidden = !(recent('failed', TEN_MINUTES) > 0)
  setText(byId('p50'), millis(latest('p50_ms')))
  setText(byId('p99'), millis(latest('p99_ms')))
}

/** The budget of which the smallest share is left: upstreams may share keys. */
function budgetOf (status) {
  const budgets = upstreams(status).map((upstream) => {
    const keys = upstream.keys.filter((key) => key.budget)
    const sum = (name) => keys.reduce((all, key) => all + key[name], 0)
    return { name: upstream.name, left: sum('budget_left'), limit: sum('budget'), kept: sum('kept_for_probes') }
  }).filter(({ limit }) => limit > 0)
  return budgets.sort((one, other) => one.left / one.limit - other.left / other.limit)[0] ?? { left: NaN }
}

function showBudget (status) {
  const { name, left, limit, kept } = budgetOf(status)
  const hasLimit = limit > 0
  const over = recent('over_budget', TEN_MINUTES)
  const figure = (value, text, kind = '') => element('p', { class: `figure ${kind}` }, element('b', {}, value), ` ${text}`)
  const sent = figure(count(recent('sent')), 'sent in the last minute')
  byId('budget').replaceChildren(...(hasLimit
    ? [figure(count(left), `left of ${count(limit)} a minute${upstreams(status).length > 1 ? ` (${name})` : ''}`), figure(count(kept), 'kept free for the chain')]
    : [sent]), ...(over > 0 ? [figure(count(over), 'not sent in 10 min', 'failed')] : []))
  setText(byId('budget-title'), hasLimit ? 'Upstream budget' : 'Upstream requests')
  byId('meter').hidden = !hasLimit
  budgetChart.series = [hasLimit ? 'budget_left' : 'sent']
  if (hasLimit) {
    const [ofLeft, ofKept] = byId('meter').children
    ofLeft.style.width = `${100 * Math.max(left - kept, 0) / limit}%`
    ofKept.style.width = `${100 * Math.min(kept, left) / limit}%`
  }
  const spenders = upstreams(status).flatMap((upstream) => list(upstream.heaviest_clients)).filter((client) => client.recent >= 0.1)
  const all = spenders.reduce((sum, client) => sum + client.recent, 0)
  const shares = grouped(spenders, ({ client }) => client)
    .map(({ name: client, rows }) => [client, rows.reduce((sum, row) => sum + row.recent, 0) / all])
    .sort((one, other) => other[1] - one[1])
  byId('spenders').replaceChildren(...(shares.length
    ? ['Spent lately by ', ...shares.slice(0, 4).flatMap(([client, share], at) => [at ? ', ' : '', element('b', {}, client), ` ${percent(share)}`])]
    : []))
}

function showChain (status) {
  const known = tips(status)
  byId('chain').hidden = known.length === 0
  byId('tips').replaceChildren(...known.map((tip) => {
    const moved = ago(tip.moved_seconds_ago)
    const sinceStart = Math.abs(status.uptime_seconds - tip.moved_seconds_ago) < 5
    const { last_reorg: reorg } = tip
    const line = (text, tone = '') => element('p', { class: tone }, text)
    return element('div', { class: 'tip' },
      element('p', { class: 'figure' }, element('b', {}, count(tip.height ?? NaN)), ` ${tip.name}`),
      tip.known ? line(sinceStart ? `not moved since the start, ${moved}` : `moved ${moved}`, isStuck(tip) ? 'warn' : '') : line('not known at present', 'warn'),
      reorg ? line(`last reorg ${ago(reorg.seconds_ago)}, up to ${count(reorg.blocks)} ${reorg.blocks === 1 ? 'block' : 'blocks'} deep`, reorg.seconds_ago < TEN_MINUTES ? 'warn' : '') : line('no reorg seen since the start', 'quiet'))
  }))
}

/** Shows a status, and the history that came with it. */
export function showOverview (status) {
  showVerdict(status)
  showClients()
  showBudget(status)
  showChain(status)
  updateCharts()
}
