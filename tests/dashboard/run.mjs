// Opens the dashboard and /docs in a headless Chromium and checks what an operator
// would see. Prints a line for each check, and ends with their number.

import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'

import { Browser } from './browser.mjs'
import { checks } from './checks.mjs'
import { Ordgate } from './gateway.mjs'

const { values: options } = parseArgs({
  options: {
    binary: { type: 'string', default: 'target/debug/ordgate' },
    chromium: { type: 'string', default: 'chromium' },
    only: { type: 'string' },
    screenshot: { type: 'string' }
  }
})

const world = { ordgate: null, browser: null, binary: options.binary }
let [passed, failed] = [0, 0]

/** Runs a check in a tab of its own. Returns whether it passed. */
async function run (name, check) {
  const page = await world.browser.page()
  try {
    await page.look({ width: 1280, height: 1000 })
    const said = await check(page, world)
    console.log(`ok      ${name}${said ? `: ${said}` : ''}`)
    return true
  } catch (error) {
    console.log(`FAILED  ${name}\n        ${error.stack}`)
    return false
  } finally {
    await world.browser.send('Target.closeTarget', { targetId: page.target })
  }
}

try {
  world.browser = await Browser.start(options.chromium)
  world.ordgate = await Ordgate.start(options.binary)
  for (const [name, check] of checks) {
    if (options.only && !name.includes(options.only)) continue
    // A busy machine may stop the browser for longer than a check waits. So a check that
    // fails is run once more, in a new tab; one that fails twice has failed.
    if (await run(name, check) || await run(name, check)) passed += 1
    else failed += 1
  }
  if (options.screenshot) {
    const page = await world.browser.page()
    await page.look({ width: 1280, height: 1000 })
    writeFileSync(options.screenshot, await page.screenshot())
  }
} catch (error) {
  console.log(`FAILED  the run itself\n        ${error.stack}`)
  failed += 1
} finally {
  await world.browser?.close()
  await world.ordgate?.end()
}
console.log(`${passed} passed, ${failed} failed`)
process.exit(failed || !passed ? 1 : 0)
