// The page of README.md that asks again when it is told to, in place of polling.

import { strict as assert } from 'node:assert'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'

import { sleep, until } from './browser.mjs'

/** The program of README.md, for this ordgate and this block. */
function program (base, height) {
  const text = readFileSync(new URL('../../README.md', import.meta.url), 'utf8')
  const [, code] = text.match(/```js\n(.*?)```/s)
  assert.match(code, /blocks\/840000\//)
  return code.replaceAll('http://127.0.0.1:8080', base).replace('840000', height)
}

async function showsTheNewBlock (page, { ordgate }) {
  // A page of another origin, as a frontend's is.
  const site = createServer((_, response) => response.setHeader('content-type', 'text/html').end('<title>a frontend</title>'))
  await new Promise((resolve) => site.listen(0, '127.0.0.1', resolve))
  try {
    const status = await ordgate.status()
    const { height } = status.chain.tips.find(({ name }) => name === 'runes')
    const block = `${ordgate.public}/runes/v1/blocks/${height}/activity`
    await page.open(`http://127.0.0.1:${site.address().port}/`)
    // In a function, since the check may run again in the same tab.
    await page.evaluate(`(() => { ${program(ordgate.public, height)} })()`)
    const shown = async () => JSON.parse(await page.evaluate('document.body.textContent')).results[0].location.block_hash
    const before = await until('the page shows the block', shown)
    const asked = () => page.requests.filter((url) => url === block).length
    const first = asked()
    await sleep(3000)
    assert.equal(asked(), first, 'the page does not poll')

    await fetch(`${status.upstream.url}/sandbox/reorg?depth=3`, { method: 'POST' })
    const after = await until('the page shows the new block', async () => {
      const hash = await shown()
      return hash !== before && hash
    })
    const now = await (await fetch(block)).json()
    assert.equal(after, now.results[0].location.block_hash)
    assert.deepEqual(page.complaints, [])
    return `${asked()} requests for the block`
  } finally {
    site.close()
  }
}

export const eventsChecks = [
  ['the program of README.md asks again after a reorg, and never polls', showsTheNewBlock]
]
