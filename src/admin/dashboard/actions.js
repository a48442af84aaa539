// The box that explains a URL, and purge and reload, each with a confirmation.

import { request } from './source.js'
import { byId, duration, element, plain, words } from './text.js'

// A page of another site cannot send this field, so the listener takes no page's word
// without it.
const OWN = { 'x-ordgate-admin': '1' }

async function read (response) {
  const text = await response.text()
  try {
    return JSON.parse(text)
  } catch {
    return { detail: text.trim() }
  }
}

function say (place, text, isBad) {
  place.replaceChildren(element('p', { class: isBad ? 'answer bad' : 'answer' }, text))
}

function facts (object) {
  const rows = Object.entries(object).filter(([, value]) => value !== undefined)
  return element('dl', { class: 'facts' }, ...rows.flatMap(([title, value]) => [element('dt', {}, title), element('dd', {}, plain(value))]))
}

/** What is stored, in a sentence. */
function stored (answer) {
  // Of the variants of a plain route, the newest.
  const response = answer.stored?.newest_first ? answer.stored.newest_first[0] : answer.stored
  if (!response) return answer.route ? 'Nothing is stored in memory for it.' : ''
  const parts = [`Status ${plain(response.status)}, ${plain(response.bytes)} bytes`]
  if (response.class) parts.push(`class ${response.class}`)
  if (response.age_seconds !== undefined) parts.push(`${duration(response.age_seconds)} old`)
  const fresh = response.freshness
  if (fresh?.is) parts.push(fresh.ttl_seconds === undefined ? fresh.is : `${fresh.is} for ${duration(fresh.ttl_seconds)}`)
  if (answer.stored.count > 1) parts.push(`the newest of ${answer.stored.count} variants`)
  return `Stored: ${parts.join(', ')}.`
}

const NEXT = {
  hit: 'The next request for it is answered from memory.',
  fetch: 'The next request for it is sent upstream.',
  'look it up on disk': 'The next request for it is answered from disk.',
  'answer itself': 'ordgate answers it itself.'
}

function showExplained (answer) {
  const next = answer.next ?? {}
  const sentence = NEXT[next.does] ?? `The next request for it: ${plain(next.does)}.`
  const place = byId('explained')
  place.replaceChildren(
    element('p', { class: 'answer' }, element('strong', {}, sentence), ` ${plain(next.why)}.`),
    element('p', {}, stored(answer))
  )
  const { url, route, mode, upstream, key, next: _, stored: response, ...more } = answer
  const sends = next.upstream_requests?.length ? next.upstream_requests : undefined
  const rest = Object.fromEntries(Object.entries(more).filter(([, value]) => value !== null).map(([title, value]) => [words(title), value]))
  place.append(facts({ URL: url, route: route ?? 'none', mode, upstream, 'cache key': key, 'would be sent upstream': sends, ...rest }))
  if (response) place.append(element('details', {}, element('summary', {}, 'The stored answer'), facts(Object.fromEntries(Object.entries(response).map(([title, value]) => [words(title), value])))))
}

async function explain (url) {
  byId('explain-url').value = url
  try {
    const response = await request(`explain?url=${encodeURIComponent(url)}`)
    const answer = await read(response)
    if (response.ok) showExplained(answer)
    else say(byId('explained'), plain(answer.detail), true)
  } catch {
    say(byId('explained'), 'No answer: there is no connection.', true)
  }
}

/** Asks; true if the answer is yes. */
function confirmed (title, text, button) {
  const dialog = byId('confirm')
  byId('confirm-title').textContent = title
  byId('confirm-text').textContent = text
  byId('confirm-yes').textContent = button
  dialog.returnValue = 'no'
  dialog.showModal()
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true })
  })
}

async function change (path, done) {
  try {
    const response = await request(path, { method: 'POST', headers: OWN, patience: 60000 })
    const answer = await read(response)
    if (response.ok) return say(byId('done'), done(answer))
    const why = [answer.detail, ...(answer.problems ?? []).map(plain)].map(plain).join(' ')
    say(byId('done'), `${response.status}: ${why}`, true)
  } catch {
    say(byId('done'), 'No answer: there is no connection, so it is not known whether this was done.', true)
  }
}

async function purge () {
  const by = byId('purge-by').value
  const what = byId('purge-what').value.trim()
  const named = by === 'all' ? 'everything' : `${by} ${what}`
  const text = by === 'all'
    ? 'All stored answers are removed, and each is requested from the upstream again.'
    : `All stored answers that match ${named} are removed.`
  if (!await confirmed('Purge?', text, `Purge ${by === 'all' ? 'everything' : `by ${by}`}`)) return
  const query = by === 'all' ? 'all' : `${by}=${encodeURIComponent(what)}`
  await change(`purge?${query}`, (answer) => {
    const missing = answer.replicas?.missing ? `; ${answer.replicas.missing} of the replicas have not purged yet` : ''
    return `Purged ${named} (purge ${plain(answer.number)})${missing}.`
  })
}

async function reload () {
  const text = 'The configuration, keys, tokens and certificates are read again. If anything in them is invalid, nothing changes.'
  if (!await confirmed('Reload?', text, 'Reload')) return
  await change('reload', (answer) => `Reloaded. ${plain(answer)}`)
}

function labelPurge () {
  const by = byId('purge-by').value
  const isAll = by === 'all'
  byId('purge-what').hidden = isAll
  byId('purge-what').required = !isAll
  byId('purge-label').hidden = isAll
  byId('purge-label').textContent = { url: 'URL', route: 'Route', tag: 'Tag' }[by] ?? ''
}

/** Opens the part that the address of the page names, and explains its URL, as links do. */
function followAddress () {
  const [, part, named] = location.hash.match(/^#(\w+)(?:=(.+))?$/) ?? []
  const opened = byId(part)
  if (opened?.tagName !== 'DETAILS') return
  opened.open = true
  opened.scrollIntoView()
  if (part !== 'explain') return
  byId('explain-url').focus({ preventScroll: true })
  if (!named) return
  let url
  try {
    url = decodeURIComponent(named)
  } catch {
    return
  }
  explain(url)
}

/** Makes the forms work. */
export function makeActions () {
  byId('explain-form').addEventListener('submit', (event) => {
    event.preventDefault()
    explain(byId('explain-url').value.trim())
  })
  byId('purge-form').addEventListener('submit', (event) => {
    event.preventDefault()
    purge()
  })
  byId('purge-by').addEventListener('change', labelPurge)
  byId('reload').addEventListener('click', reload)
  addEventListener('hashchange', followAddress)
  // The same link again.
  addEventListener('click', (event) => { if (event.target.hash === location.hash) followAddress() })
  labelPurge()
  followAddress()
}
