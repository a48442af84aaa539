// Runs the suite through a proxy, counts as cache-tests.fyi does, and compares
// what fails with known.toml.
//
// Top to bottom: the run, what it starts, how it counts, what it says.
// Nothing here decides whether a test passes: the suite's own client does.

import { execFileSync, spawn } from 'node:child_process'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'

import fetch from 'node-fetch'
import { getResults, runTests } from 'http-cache-tests/client/runner.mjs'
import suites from 'http-cache-tests/tests/index.mjs'
import surrogate from 'http-cache-tests/tests/surrogate-control.mjs'

import { KnownError, readKnown } from './known.mjs'

const HERE = import.meta.dirname
const ROOT = path.resolve(HERE, '../..')
const OUT = path.join(HERE, 'out')

const USAGE = `usage: run [--peer ordgate|nginx] [--binary FILE] [--id ID]... [--all] [--timeout SECONDS]

  --peer NAME     the proxy under test (ordgate)
  --binary FILE   its binary (cargo's release/ordgate, or nginx from PATH)
  --id ID         only this test, with everything that was sent; may be repeated
  --all           name what failed among the optimal tests, and every check
  --timeout N     give up after so many seconds (480)
`

// One answer that never ends must not cost the run: the suite's client waits
// for ever. Longer than any answer of the suite's origin takes.
const ANSWER_TIMEOUT_MS = 20_000
const READY_TIMEOUT_MS = 15_000
const GRACE_MS = 3_000

// How a run ends: 0 as expected, 1 not as expected, 2 it could not be told.
const AS_EXPECTED = 0
const UNEXPECTED = 1
const BROKEN = 2

class Broken extends Error {}

async function main () {
  const options = readOptions()
  const known = options.peer === 'ordgate' ? readKnown(path.join(HERE, 'known.toml'), testsById()) : new Map()
  const verbose = options.ids.length > 0
  const deadline = setTimeout(() => end(BROKEN, `not done after ${options.timeout} s`), options.timeout * 1000)

  fs.mkdirSync(OUT, { recursive: true })
  const originPort = await startOrigin(verbose)
  const proxyPort = await PEERS[options.peer](options, originPort)

  const began = Date.now()
  await runTests(selected(options.ids), patientFetch, false, `http://127.0.0.1:${proxyPort}`)
  clearTimeout(deadline)
  for (const child of children) {
    if (child.over) throw new Broken(`${child.label} ended during the tests; what it said is in ${child.log}`)
  }
  const results = getResults()

  if (verbose) return tellOne(options.ids, results)
  const seconds = Math.round((Date.now() - began) / 1000)
  return tellAll(options, results, known, seconds)
}

function readOptions () {
  let values
  try {
    ({ values } = parseArgs({
      options: {
        peer: { type: 'string', default: 'ordgate' },
        binary: { type: 'string' },
        id: { type: 'string', multiple: true, default: [] },
        all: { type: 'boolean', default: false },
        timeout: { type: 'string', default: '480' },
        help: { type: 'boolean', default: false }
      }
    }))
  } catch (error) {
    throw new Broken(`${error.message}\n${USAGE}`)
  }
  if (values.help) {
    process.stdout.write(USAGE)
    process.exit(AS_EXPECTED)
  }
  if (!Object.hasOwn(PEERS, values.peer)) throw new Broken(`--peer: allowed are ${Object.keys(PEERS).join(' and ')}`)
  const timeout = Number(values.timeout)
  if (!(timeout >= 1 && timeout <= 86_400)) throw new Broken('--timeout: a number of seconds')
  for (const id of values.id) {
    if (!testsById().has(id)) throw new Broken(`--id: the suite has no test ${id}`)
  }
  return { peer: values.peer, binary: values.binary, ids: values.id, all: values.all, timeout }
}

function selected (ids) {
  const all = [...suites, surrogate]
  if (ids.length === 0) return all
  return all.map(suite => ({
    ...suite,
    tests: suite.tests.filter(test => ids.includes(test.id)).map(test => ({ ...test, dump: true }))
  }))
}

function patientFetch (url, init) {
  return fetch(url, { timeout: ANSWER_TIMEOUT_MS, ...init })
}

// ---- What it starts, and how that ends

const children = []
let scratch

async function startOrigin (verbose) {
  const child = start('origin', process.execPath, ['--no-warnings', path.join(HERE, 'origin.mjs')], {
    env: {
      ...process.env,
      npm_config_protocol: 'http',
      npm_config_port: '0',
      npm_config_pidfile: path.join(OUT, 'origin.pid')
    },
    echo: verbose
  })
  const [, port] = await said(child, /^Listening on http:\/\/127\.0\.0\.1:(\d+)\//m)
  return Number(port)
}

const PEERS = {
  async ordgate (options, originPort) {
    const binary = path.resolve(options.binary ?? path.join(targetDirectory(), 'release/ordgate'))
    if (!fs.existsSync(binary)) throw new Broken(`there is no ${binary}: build it with cargo build --release`)
    const config = fill('ordgate.toml', { PORT: 0, ORIGIN_PORT: originPort })
    const child = start('ordgate', binary, ['serve', '--config', config])
    const [, port] = await said(child, /^ordgate is (?:ready|listening) on http:\/\/127\.0\.0\.1:(\d+) /m)
    return Number(port)
  },

  async nginx (options, originPort) {
    const binary = options.binary ?? 'nginx'
    const port = await freePort()
    // A worker started by root would give up its rights to our directory.
    const user = process.getuid() === 0 ? `user ${os.userInfo().username};` : ''
    const config = fill('nginx.conf', { PORT: port, ORIGIN_PORT: originPort, USER: user, DIR: scratchDirectory() })
    const child = start('nginx', binary, ['-p', scratchDirectory(), '-e', 'stderr', '-c', config])
    await accepts(child, port)
    return port
  }
}

/// Where cargo builds: CARGO_TARGET_DIR, cargo's configuration, or ./target.
function targetDirectory () {
  const args = ['metadata', '--no-deps', '--format-version', '1']
  const metadata = execFileSync('cargo', args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 1 << 26 })
  return JSON.parse(metadata).target_directory
}

function fill (template, words) {
  const text = fs.readFileSync(path.join(HERE, template), 'utf8')
    .replace(/@([A-Z_]+)@/g, (all, word) => {
      if (!Object.hasOwn(words, word)) throw new Broken(`${template}: nothing fills ${all}`)
      return words[word]
    })
  const file = path.join(scratchDirectory(), template)
  fs.writeFileSync(file, text)
  return file
}

function scratchDirectory () {
  scratch ??= fs.mkdtempSync(path.join(os.tmpdir(), 'conformance-'))
  return scratch
}

function start (label, command, args, { env = process.env, echo = false } = {}) {
  const log = path.join(OUT, `${label}.log`)
  const file = fs.createWriteStream(log)
  const process_ = spawn(command, args, { cwd: OUT, env, stdio: ['pipe', 'pipe', 'pipe'] })
  const child = { label, log, process: process_, output: '', over: null, heard: () => {} }
  process_.stdin.on('error', () => {})
  for (const stream of [process_.stdout, process_.stderr]) {
    stream.setEncoding('utf8').on('data', text => {
      file.write(text)
      if (echo) process.stdout.write(text)
      // Only the beginning is looked at; the rest is in the log.
      if (child.output.length < 65_536) child.output += text
      child.heard()
    })
  }
  child.ended = new Promise(resolve => {
    const over = why => {
      child.over = why
      child.heard()
      resolve()
    }
    process_.on('error', error => over(error.message))
    process_.on('exit', (code, signal) => over(`it ended with ${signal ?? code}`))
  })
  children.push(child)
  return child
}

function said (child, pattern) {
  return new Promise((resolve, reject) => {
    const fail = why => reject(new Broken(`${child.label} did not come up: ${why}\n${child.output}`))
    const timer = setTimeout(() => fail(`not ready after ${READY_TIMEOUT_MS / 1000} s`), READY_TIMEOUT_MS)
    child.heard = () => {
      const found = pattern.exec(child.output)
      if (!found && !child.over) return
      clearTimeout(timer)
      child.heard = () => {}
      if (found) resolve(found)
      else fail(child.over)
    }
    child.heard()
  })
}

async function accepts (child, port) {
  const until = Date.now() + READY_TIMEOUT_MS
  while (Date.now() < until) {
    if (child.over) throw new Broken(`${child.label} did not come up: ${child.over}\n${child.output}`)
    const open = await new Promise(resolve => {
      const socket = net.connect(port, '127.0.0.1', () => { socket.destroy(); resolve(true) })
      socket.on('error', () => resolve(false))
    })
    if (open) return
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  throw new Broken(`${child.label} does not accept on port ${port}\n${child.output}`)
}

function freePort () {
  return new Promise((resolve, reject) => {
    const server = net.createServer().on('error', reject)
    server.listen({ host: '127.0.0.1', port: 0 }, () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

let ending = false

async function end (code, why) {
  if (ending) return
  ending = true
  if (why) console.error(`conformance: ${why}`)
  await Promise.all(children.map(async child => {
    if (child.over) return
    child.process.kill('SIGTERM')
    const timer = setTimeout(() => child.process.kill('SIGKILL'), GRACE_MS)
    await child.ended
    clearTimeout(timer)
  }))
  process.exit(code)
}

process.on('exit', () => {
  // Whatever way this process ends, short of being killed outright.
  for (const child of children) {
    if (!child.over) child.process.kill('SIGKILL')
  }
  if (scratch) fs.rmSync(scratch, { recursive: true, force: true })
})
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => end(BROKEN, `stopped by ${signal}`))

// ---- How it counts: as determineTestResult in the suite's lib/display.mjs

const KINDS = ['required', 'optimal', 'check']

function kindOf (test) {
  return test.kind ?? 'required'
}

function testsById () {
  return new Map([...suites, surrogate].flatMap(suite => suite.tests.map(test => [test.id, test])))
}

/// Null where the test passed, otherwise why it counts as not passed: a test
/// whose dependency did not pass says nothing, whatever its own result.
function failureOf (id, results, tests) {
  const test = tests.get(id)
  for (const dependency of test.depends_on ?? []) {
    if (failureOf(dependency, results, tests) !== null) {
      const own = results[id] === true ? 'passed itself' : message(results[id])
      return `depends on ${dependency}, which did not pass (${own})`
    }
  }
  return results[id] === true ? null : message(results[id])
}

function message (result) {
  if (result === undefined) return 'not run'
  const [kind, text] = result
  return kind === 'Assertion' ? text : `${kind}: ${text}`
}

/// What was run of `someSuites`, by kind: how many there are, and what failed.
function count (someSuites, results, tests) {
  const counts = Object.fromEntries(KINDS.map(kind => [kind, { of: 0, passed: 0, failed: [] }]))
  for (const test of someSuites.flatMap(suite => suite.tests)) {
    if (test.browser_only) continue
    const counted = counts[kindOf(test)]
    const why = failureOf(test.id, results, tests)
    counted.of += 1
    if (why === null) counted.passed += 1
    else counted.failed.push({ id: test.id, name: test.name, why })
  }
  return counts
}

// ---- What it says

function tellOne (ids, results) {
  let code = AS_EXPECTED
  console.log('=== Results, dependencies aside')
  for (const id of ids) {
    const passed = results[id] === true
    if (!passed) code = UNEXPECTED
    console.log(`    ${id}: ${passed ? 'passed' : message(results[id])}`)
  }
  return code
}

function tellAll (options, results, known, seconds) {
  const tests = testsById()
  const counts = count(suites, results, tests)
  const apart = count([surrogate], results, tests)
  save(options.peer, results, counts)

  const { required, optimal, check } = counts
  tell('Required tests that did not pass', required.failed, known)
  if (options.all) {
    tell('Optimal tests that did not pass', optimal.failed, known)
    tell('Checks whose answer is no', check.failed, known)
  }
  console.log(`${options.peer}, in ${seconds} s, Surrogate-Control (not in the count) required ` +
    `${apart.required.passed}/${apart.required.of}, optimal ${apart.optimal.passed}/${apart.optimal.of}`)
  console.log(`required ${required.passed}/${required.of}, optimal ${optimal.passed}/${optimal.of}, ` +
    `check ${check.passed} yes/${check.of - check.passed} no`)
  return options.peer === 'ordgate' ? compare(required, known) : AS_EXPECTED
}

function tell (heading, failed, known) {
  if (failed.length === 0) return
  console.log(`${heading}: ${failed.length}`)
  for (const { id, name, why } of failed) {
    console.log(`  ${id}${known.has(id) ? ' (known)' : ''}\n    ${name}\n    ${why}`)
  }
  console.log('')
}

/// The gate: required tests fail exactly where known.toml says so.
function compare (required, known) {
  const failed = new Set(required.failed.map(({ id }) => id))
  const news = [...failed].filter(id => !known.has(id))
  const gone = [...known.keys()].filter(id => !failed.has(id))
  if (news.length > 0) console.log(`FAILED, and not in known.toml: ${news.join(', ')}`)
  if (gone.length > 0) console.log(`PASSED, so known.toml must no longer name: ${gone.join(', ')}`)
  if (news.length + gone.length > 0) return UNEXPECTED
  console.log(`as expected: ${known.size} known`)
  return AS_EXPECTED
}

/// The results in the suite's own shape, as its `results` directory has them,
/// and the counts beside them.
function save (peer, results, counts) {
  const write = (name, value) => fs.writeFileSync(path.join(OUT, name), JSON.stringify(value, null, 2) + '\n')
  write(`${peer}.json`, results)
  write(`${peer}-counts.json`, counts)
}

main().then(
  code => end(code),
  error => end(BROKEN, error instanceof Broken || error instanceof KnownError ? error.message : error.stack)
)
