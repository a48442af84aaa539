// What the page reads: /status and /history every two seconds. Requests stop while the
// page is hidden, and go on by themselves after an outage.

import { clock } from './text.js'

const INTERVAL = 2000
const PATIENCE = 8000

const STORED = 'ordgate-token'
// What a request can have: a browser refuses to send anything else.
const isToken = (text) => /^[\x21-\x7e]+$/.test(text)

let token = sessionStorage.getItem(STORED)
if (token !== null && !isToken(token)) forgetToken()

/** Forgets a token that is not valid, so that the page asks for one. */
function forgetToken () {
  token = null
  sessionStorage.removeItem(STORED)
}

/** A request to this listener, with the token if there is one. */
export async function request (path, options = {}) {
  const headers = { ...options.headers }
  if (token) headers.authorization = `Bearer ${token}`
  const signal = AbortSignal.timeout(options.patience ?? PATIENCE)
  return fetch(path, { cache: 'no-store', ...options, headers, signal })
}

/** Sets the token of this tab. Returns what is wrong with one that no request can have. */
export function useToken (text) {
  const given = text.trim()
  if (!isToken(given)) {
    return 'This is no admin token: it must have ASCII letters, digits and punctuation only, without spaces.'
  }
  token = given
  sessionStorage.setItem(STORED, token)
}

/** The points of all series, with their times in seconds of Unix time. */
export const history = { times: [], series: {} }

function take ({ interval_seconds: interval, until, series }) {
  const points = until ? Object.values(series)[0].length : 0
  history.times = Array.from({ length: points }, (_, at) => until / 1000 - (points - 1 - at) * interval)
  history.series = series
}

/**
 * Polls until the page is closed. `show(status)` gets each new status, `connection(state,
 * text)` why there is none: bad, or token (one is needed).
 */
export function poll (show, connection) {
  let timer = null
  let lost = null
  let running = false

  async function round () {
    const status = await request('status')
    if (status.status === 401) {
      forgetToken()
      return connection('token', 'The admin token is needed.')
    }
    if (!status.ok) throw new Error(`status ${status.status}`)
    const read = await status.json()
    const points = await request('history')
    if (points.ok) take(await points.json())
    lost = null
    show(read)
  }

  async function tick () {
    timer = null
    if (running || document.hidden) return
    running = true
    try {
      await round()
    } catch (error) {
      lost ??= new Date()
      connection('bad', `No connection since ${clock(lost)}; the values are older. Trying again…`)
      if (error instanceof TypeError && !/fetch|network|load/i.test(error.message)) console.error(error)
    } finally {
      running = false
    }
    if (!document.hidden) timer ??= setTimeout(tick, INTERVAL)
  }

  document.addEventListener('visibilitychange', () => {
    clearTimeout(timer)
    timer = null
    if (!document.hidden) tick()
  })
  tick()
  return () => {
    clearTimeout(timer)
    timer = null
    tick()
  }
}
