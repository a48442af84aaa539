// An ordgate with its sandbox, as a process of its own.

import { spawn } from 'node:child_process'
import { request } from 'node:http'

import { PATIENCE, until } from './browser.mjs'

export class Ordgate {
  /** Starts the binary; `admin` is the port of its admin listener, any by default. */
  static async start (binary, { admin = 0, args = [], env = {} } = {}) {
    const ordgate = new Ordgate()
    // Those of exports would change what it does.
    const inherited = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('OTEL_')))
    ordgate.process = spawn(binary, ['serve', '--sandbox', '--listen', '127.0.0.1:0', '--admin', `127.0.0.1:${admin}`, ...args], {
      stdio: ['ignore', 'pipe', 'pipe'], env: { ...inherited, ...env }
    })
    ordgate.ended = new Promise((resolve) => ordgate.process.once('exit', resolve))
    let text = ''
    let log = ''
    ordgate.process.stdout.setEncoding('utf8').on('data', (chunk) => { text += chunk })
    ordgate.process.stderr.setEncoding('utf8').on('data', (chunk) => { log = (log + chunk).slice(-4000) })
    const line = await until('ordgate is ready', () => {
      if (ordgate.process.exitCode !== null) throw new Error(`it has ended: ${log}`)
      return text.match(/ready on (http:\S+) \(admin on (http:\S+)\)/)
    });
    [, ordgate.public, ordgate.admin] = line
    ordgate.port = Number(new URL(ordgate.admin).port)
    return ordgate
  }

  /** GET of a path that is sent exactly as it is. */
  get (path, base = this.public, headers = {}) {
    const { hostname, port } = new URL(base)
    return new Promise((resolve, reject) => {
      const sent = request({ hostname, port, path, headers, timeout: PATIENCE, agent: false }, (response) => {
        const chunks = []
        response.on('data', (chunk) => chunks.push(chunk))
        response.on('end', () => {
          const body = Buffer.concat(chunks)
          resolve({ status: response.statusCode, headers: response.headers, body, text: body.toString() })
        })
      })
      sent.on('error', reject)
      sent.end()
    })
  }

  async status () {
    return JSON.parse((await this.get('/status', this.admin)).text)
  }

  async end (signal = 'SIGKILL') {
    this.process.kill(signal)
    await this.ended
  }
}
