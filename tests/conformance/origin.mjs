// The suite's own origin server, in a process of its own.
//
// The suite listens on every interface, on a port named beforehand; here it
// listens on loopback, on a free one, and says which. It ends with whoever
// started it: their end of standard input closes.

import http from 'node:http'

const listen = http.Server.prototype.listen
http.Server.prototype.listen = function () {
  return listen.call(this, { host: '127.0.0.1', port: 0 })
}

process.stdin.on('end', () => process.exit(0)).on('error', () => process.exit(0)).resume()

await import('http-cache-tests/server/server.mjs')
