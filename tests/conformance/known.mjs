// Reads known.toml: the required tests that ordgate does not pass, each with
// the reason. Only the one shape it has is read, and anything else refused.

import fs from 'node:fs'

export class KnownError extends Error {}

/// A map from test to reason; throws where the file says what it cannot mean.
export function readKnown (file, tests) {
  const known = new Map()
  let entry = null
  const close = line => {
    if (entry === null) return
    const { id, why } = entry
    if (!id || !why) throw new KnownError(`${file}:${line}: an entry needs both id and why`)
    if (known.has(id)) throw new KnownError(`${file}:${line}: ${id} is named twice`)
    const test = tests.get(id)
    if (test === undefined) throw new KnownError(`${file}:${line}: the suite has no test ${id}`)
    if ((test.kind ?? 'required') !== 'required') throw new KnownError(`${file}:${line}: ${id} is not a required test`)
    known.set(id, why)
  }
  const unquoted = (text, line) => {
    // What JSON and a TOML basic string escape is the same as far as this goes.
    try {
      return JSON.parse(text)
    } catch {
      throw new KnownError(`${file}:${line}: not a string: ${text}`)
    }
  }
  const lines = fs.readFileSync(file, 'utf8').split('\n')
  lines.forEach((text, index) => {
    const line = index + 1
    const trimmed = text.trim()
    if (trimmed === '' || trimmed.startsWith('#')) return
    if (trimmed === '[[known]]') {
      close(line)
      entry = {}
      return
    }
    const field = /^(id|why) = (".*")$/.exec(trimmed)
    if (field === null || entry === null || field[1] in entry) throw new KnownError(`${file}:${line}: not understood: ${trimmed}`)
    entry[field[1]] = unquoted(field[2], line)
  })
  close(lines.length)
  return known
}
