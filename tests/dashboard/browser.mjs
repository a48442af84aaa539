// A headless Chromium, driven by the DevTools protocol over a pair of pipes.

import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** How long anything may take. The machine may be slow and busy. */
export const PATIENCE = 120_000

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Calls until the result is truthy, and returns it. */
export async function until (what, call, patience = PATIENCE) {
  const end = Date.now() + patience
  let last
  while (Date.now() < end) {
    try {
      last = await call()
      if (last) return last
    } catch (error) {
      last = error
    }
    await sleep(100)
  }
  throw new Error(`${what}: still not after ${patience / 1000} s (last: ${last})`)
}

export class Browser {
  /** Starts Chromium; its data is removed when it ends. */
  static async start (binary) {
    const browser = new Browser()
    browser.data = mkdtempSync(join(tmpdir(), 'ordgate-browser-'))
    browser.process = spawn(binary, [
      '--headless=new', '--remote-debugging-pipe', `--user-data-dir=${browser.data}`,
      '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--hide-scrollbars',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-proxy-server',
      'about:blank'
    ], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] })
    browser.ended = new Promise((resolve) => browser.process.once('exit', resolve))
    browser.sent = 0
    browser.waiting = new Map()
    browser.listeners = []
    const [, , , input, output] = browser.process.stdio
    browser.input = input
    input.on('error', () => {})
    let rest = ''
    output.setEncoding('utf8')
    output.on('data', (chunk) => {
      const messages = (rest + chunk).split('\0')
      rest = messages.pop()
      messages.forEach((message) => browser.receive(JSON.parse(message)))
    })
    await browser.send('Browser.getVersion')
    return browser
  }

  receive (message) {
    const waiting = this.waiting.get(message.id)
    if (waiting) {
      this.waiting.delete(message.id)
      if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`))
      else waiting.resolve(message.result)
    } else {
      this.listeners.forEach((listener) => listener(message))
    }
  }

  send (method, params = {}, sessionId = undefined) {
    const id = (this.sent += 1)
    this.input.write(`${JSON.stringify({ id, method, params, sessionId })}\0`)
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${method}: no answer`)), PATIENCE)
      const settle = (done) => (value) => {
        clearTimeout(timer)
        done(value)
      }
      this.waiting.set(id, { method, resolve: settle(resolve), reject: settle(reject) })
    })
  }

  async page () {
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank' })
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true })
    const page = new Page(this, sessionId, targetId)
    for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await page.send(`${domain}.enable`)
    return page
  }

  async close () {
    this.process.kill('SIGTERM')
    await Promise.race([this.ended, sleep(10_000).then(() => this.process.kill('SIGKILL'))])
    // The browser's other processes end later than its first one and write until then,
    // also into directories that were just emptied: so everything is removed again.
    for (let attempt = 1; attempt <= 50; attempt++) {
      try {
        return rmSync(this.data, { recursive: true, force: true })
      } catch (error) {
        if (!['ENOTEMPTY', 'EBUSY', 'EPERM'].includes(error.code)) throw error
        await sleep(200)
      }
    }
    console.error(`the browser's data is left in ${this.data}: it is still written after 10 s`)
  }
}

/** A tab, with all that it has logged and requested. */
class Page {
  constructor (browser, session, target) {
    Object.assign(this, { browser, session, target, complaints: [], requests: [], dialogs: 0, failures: [] })
    browser.listeners.push((message) => {
      if (message.sessionId !== session) return
      const { method, params } = message
      if (method === 'Runtime.exceptionThrown') {
        const { exception, text } = params.exceptionDetails
        this.complaints.push(exception?.description ?? text)
      } else if (method === 'Runtime.consoleAPICalled' && ['error', 'warning'].includes(params.type)) {
        this.complaints.push(params.args.map((arg) => arg.value ?? arg.description).join(' '))
      } else if (method === 'Log.entryAdded' && ['error', 'warning'].includes(params.entry.level)) {
        this.complaints.push(`${params.entry.text} ${params.entry.url ?? ''}`)
      } else if (method === 'Network.requestWillBeSent') {
        this.requests.push(params.request.url)
      } else if (method === 'Network.loadingFinished') {
        this.bytes = (this.bytes ?? 0) + params.encodedDataLength
      } else if (method === 'Page.javascriptDialogOpening') {
        this.dialogs += 1
        this.send('Page.handleJavaScriptDialog', { accept: true }).catch(() => {})
      }
    })
  }

  send (method, params) {
    return this.browser.send(method, params, this.session)
  }

  async open (url) {
    const { errorText } = await this.send('Page.navigate', { url })
    if (errorText) throw new Error(`${url}: ${errorText}`)
    await until(`${url} is loaded`, () => this.evaluate('document.readyState === "complete"'))
  }

  /** The value of an expression in the page; promises are awaited. */
  async evaluate (expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true })
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text)
    return result.value
  }

  async screenshot (options = {}) {
    const { data } = await this.send('Page.captureScreenshot', { format: 'png', ...options })
    return Buffer.from(data, 'base64')
  }

  /** The size of the window, and whether it is dark. */
  async look ({ width, height, dark = false, mobile = false }) {
    await this.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile })
    const features = [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }]
    await this.send('Emulation.setEmulatedMedia', { features })
  }
}
