// The checks of /docs, where RapiDoc shows the OpenAPI document.

import { strict as assert } from 'node:assert'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { until } from './browser.mjs'
import { Ordgate } from './gateway.mjs'

const OPERATIONS = 4
const heads = '[...document.querySelector("rapi-doc").shadowRoot.querySelectorAll(".endpoint-head")]'
const request = 'document.querySelector("rapi-doc").shadowRoot.querySelector("api-request").shadowRoot'

async function open (page, base) {
  await page.open(`${base}/docs`)
  await until('the operations are listed', () => page.evaluate(`${heads}.length === ${OPERATIONS}`))
}

/** Opens an operation; RapiDoc may just be drawing its list anew. */
function expand (page, place) {
  return until('it can be tried', () => page.evaluate(`(() => {
    const head = ${heads}[${place}]
    if (head.classList.contains('collapsed')) head.click()
    return Boolean(${request}.querySelector('[part~=btn-try]'))
  })()`))
}

/** Opens an operation and sends its example. Returns what is shown. */
async function tryOut (page, place) {
  await expand(page, place)
  const shown = await send(page)
  await page.evaluate(`${heads}[${place}].click()`)
  return shown
}

async function send (page) {
  await page.evaluate(`${request}.querySelector('[part~=btn-try]').click()`)
  const text = `${request}.textContent.replace(/\\s+/g, ' ')`
  return until('there is an answer', () => page.evaluate(`/Response Status: .*x-request-id: \\w{16}/.test(${text}) ? ${text} : ''`))
}

async function opensOffline (page, { ordgate }) {
  await open(page, ordgate.public)
  const { origin } = new URL(ordgate.public)
  assert.deepEqual(page.requests.filter((url) => !url.startsWith(`${origin}/`) && !url.startsWith('data:')), [])
  assert.deepEqual(page.complaints, [])
  const grounds = []
  for (const dark of [false, true]) {
    await page.look({ width: 1280, height: 1000, dark })
    grounds.push(await until('it follows the color scheme', () => page.evaluate('document.querySelector("rapi-doc").getAttribute("bg-color")')))
    await until('the ground has the color', () => page.evaluate(`getComputedStyle(document.documentElement).backgroundColor === '${dark ? 'rgb(16, 21, 27)' : 'rgb(255, 255, 255)'}'`))
  }
  return `${page.requests.length} requests, all to the listener`
}

async function examplesWork (page, { ordgate }) {
  await open(page, ordgate.public)
  for (const place of [0, 1, 2]) {
    const shown = await tryOut(page, place)
    assert.match(shown, /Response Status: OK:200/)
    assert.match(shown, /cache-status: ordgate; (hit|fwd)/)
    assert.doesNotMatch(shown, /"total": 0/)
    assert.doesNotMatch(shown, /Pattern:/)
  }
  // What is sent is what the path shows: no optional parameter is filled in.
  const sent = page.requests.filter((url) => /[/]v1[/]/.test(url))
  assert.equal(sent.length, 3)
  assert.deepEqual(sent.filter((url) => url.includes('?')), [])
  assert.deepEqual(page.complaints, [])
}

async function aRefusalSaysWhen (page, world) {
  const directory = mkdtempSync(join(tmpdir(), 'ordgate-docs-'))
  const file = join(directory, 'proxy.toml')
  writeFileSync(file, '[limit]\nrequests_per_minute = 1\nburst = 10\n')
  const ordgate = await Ordgate.start(world.binary, { args: ['--config', file] })
  try {
    await open(page, ordgate.public)
    await expand(page, 0)
    const shown = await until('there is a refusal', async () => {
      const text = await send(page)
      return text.includes(':429') && text
    })
    assert.match(shown, /retry-after: \d+/)
  } finally {
    await ordgate.end()
    rmSync(directory, { recursive: true, force: true })
  }
}

export const docsChecks = [
  ['/docs opens without an error and without a request to elsewhere', opensOffline],
  ['the examples of /docs work in the sandbox', examplesWork],
  ['/docs shows when to try again', aRefusalSaysWhen]
]
