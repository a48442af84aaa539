// The screenshot in README.md: the dashboard of a sandbox after some minutes of traffic.
//
//     node tests/dashboard/screenshot.mjs BINARY docs/dashboard.png [SECONDS]

import { writeFileSync } from 'node:fs'

import { Browser, sleep, until } from './browser.mjs'
import { Ordgate } from './gateway.mjs'

const [binary, file, seconds = 240] = process.argv.slice(2)
const TICKERS = ['ordi', 'sats', 'rats', 'pepe', 'nope', 'trac', 'meme', 'piza']

/** A few targets are requested often, most seldom. */
function target () {
  const place = Math.floor(200 * Math.random() ** 4)
  const kind = Math.random()
  if (kind < 0.45) return `/ordinals/v1/brc-20/tokens/${TICKERS[place % TICKERS.length]}`
  if (kind < 0.93) return `/runes/v1/blocks/${840199 - place}/activity?limit=${place % 2 ? 20 : 60}`
  return kind < 0.97 ? '/runes/v1/blocks/tip/activity' : '/nowhere'
}

const ordgate = await Ordgate.start(binary, { env: { ORDGATE_API_KEYS: 'a-key' } })
const browser = await Browser.start('chromium')
try {
  let isOver = false
  const traffic = (async () => {
    while (!isOver) {
      const busy = 6 + 4 * Math.sin(Date.now() / 25_000)
      await Promise.all(Array.from({ length: Math.round(busy) }, () => ordgate.get(target())))
      await sleep(250)
    }
  })()
  await sleep(seconds * 1000)
  const page = await browser.page()
  await page.look({ width: 1400, height: 900 })
  await page.open(`${ordgate.admin}/`)
  await until('the charts are drawn', () => page.evaluate('document.querySelectorAll(".chart path").length >= 3'))
  await sleep(3000)
  writeFileSync(file, await page.screenshot())
  isOver = true
  await traffic
} finally {
  await browser.close()
  await ordgate.end()
}
