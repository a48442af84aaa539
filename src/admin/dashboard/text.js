// Elements and the text of values. Everything that came from outside becomes text by
// textContent or createTextNode, never markup.

export const byId = (id) => document.getElementById(id)
export const list = (value) => (Array.isArray(value) ? value : [])

/** An element with attributes and children (strings become text). */
export function element (name, attributes = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.append(...children)
  return made
}

/** Sets the text of an element only where it changes, so that selections stay. */
export function setText (target, text) {
  if (target.textContent !== text) target.textContent = text
}

const digits = (most) => new Intl.NumberFormat('en', { maximumFractionDigits: most })
const [whole, tenth, fine] = [digits(0), digits(1), digits(2)]

/** A count, with separators; a dash where there is none. */
export function count (value) {
  return Number.isFinite(value) ? whole.format(value) : '–'
}

/** A measured number with about three digits. */
export function amount (value) {
  if (!Number.isFinite(value)) return '–'
  const size = Math.abs(value)
  return (size >= 100 ? whole : size >= 10 ? tenth : fine).format(value)
}

/** A share as percent; what is not nothing is not 0 %. */
export function percent (share) {
  if (!Number.isFinite(share)) return '–'
  return share > 0 && share < 0.001 ? '< 0.1 %' : `${(share < 0.1 ? tenth : whole).format(share * 100)} %`
}

/** Bytes in binary units. */
export function bytes (value) {
  if (!Number.isFinite(value)) return '–'
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let unit = 0
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024
    unit += 1
  }
  return `${(unit === 0 ? whole : tenth).format(value)} ${units[unit]}`
}

/** A duration in seconds, in units that fit its size. */
export function duration (seconds) {
  if (!Number.isFinite(seconds)) return '–'
  const units = [[86400, 172800, 'days'], [3600, 7200, 'h'], [60, 120, 'min'], [1, 1, 's']]
  const [size, , unit] = units.find(([, from]) => seconds >= from) ?? [0.001, 0, 'ms']
  return `${(seconds < 10 || size === 3600 ? tenth : whole).format(seconds / size)} ${unit}`
}

/** How long ago something was. */
export function ago (seconds) {
  if (!Number.isFinite(seconds)) return '–'
  return seconds < 1 ? 'just now' : `${duration(seconds)} ago`
}

/** Milliseconds. */
export function millis (value) {
  if (!Number.isFinite(value)) return '–'
  return value < 1000 ? `${amount(value)} ms` : `${amount(value / 1000)} s`
}

/** Any value of JSON as one line of text. */
export function plain (value) {
  if (value === null || value === undefined || value === '') return '–'
  if (value === true) return 'yes'
  if (value === false) return 'no'
  if (Array.isArray(value)) return value.length ? value.map(plain).join(', ') : '–'
  if (typeof value === 'object') {
    return Object.entries(value).map(([name, inner]) => `${words(name)}: ${plain(inner)}`).join('; ')
  }
  return typeof value === 'number' ? amount(value) : String(value)
}

/** A member's name as words. */
export function words (name) {
  return String(name).replaceAll('_', ' ')
}

/** The time of day of a date. */
export function clock (date) {
  return date.toLocaleTimeString('en-GB')
}
