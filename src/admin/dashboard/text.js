// Elements and the text of values. Everything that came from outside becomes text by
// textContent or createTextNode, never markup.

/** An element with attributes, classes and children (strings become text). */
export function element (name, attributes = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue
    made.setAttribute(key, value === true ? '' : value)
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))))
  return made
}

/** Sets the text of an element only where it changes, so that selections stay. */
export function setText (target, text) {
  if (target.textContent !== text) target.textContent = text
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
const tenth = new Intl.NumberFormat('en', { maximumFractionDigits: 1 })
const fine = new Intl.NumberFormat('en', { maximumFractionDigits: 3 })

/** A count, with separators; a dash where there is none. */
export function count (value) {
  return Number.isFinite(value) ? whole.format(value) : '–'
}

/** A measured number with about three digits. */
export function amount (value) {
  if (!Number.isFinite(value)) return '–'
  const size = Math.abs(value)
  return (size >= 1000 ? whole : size >= 10 ? tenth : fine).format(value)
}

/** A share as percent. */
export function percent (share) {
  return Number.isFinite(share) ? `${tenth.format(share * 100)} %` : '–'
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

/** A duration in seconds, in words that fit its size. */
export function duration (seconds) {
  if (!Number.isFinite(seconds)) return '–'
  if (seconds < 1) return `${tenth.format(seconds * 1000)} ms`
  if (seconds < 100) return `${tenth.format(seconds)} s`
  if (seconds < 6000) return `${whole.format(seconds / 60)} min`
  if (seconds < 172800) return `${tenth.format(seconds / 3600)} h`
  return `${tenth.format(seconds / 86400)} days`
}

/** Milliseconds. */
export function millis (value) {
  return Number.isFinite(value) ? `${amount(value)} ms` : '–'
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
  return name.replaceAll('_', ' ')
}

/** The time of day of a date. */
export function clock (date) {
  return date.toLocaleTimeString('en-GB')
}
