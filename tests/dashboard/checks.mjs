// The checks of the dashboard, each with a page of its own.

import { strict as assert } from 'node:assert'

import { sleep, until } from './browser.mjs'
import { docsChecks } from './docs.mjs'
import { eventsChecks } from './events.mjs'
import { Ordgate } from './gateway.mjs'

const TOKEN = '/ordinals/v1/brc-20/tokens/ordi'
const MOST_BYTES = 64 * 1024
const MOST_PAINT = 500
const INJECTED = '<img src=x onerror="window.injected=1">'

const connected = 'document.getElementById("connection").textContent === "Connected"'

/** Opens the dashboard and waits for the first values. */
async function open (page, { ordgate }) {
  await page.open(`${ordgate.admin}/`)
  await until('the page is connected', () => page.evaluate(connected))
}

/** Unfolds every part. */
const unfold = (page) => page.evaluate('document.querySelectorAll("details").forEach((part) => { part.open = true })')
const charts = 'document.querySelectorAll(".chart path").length'

/** The cells of the table with a caption, row by row. */
function table (page, caption) {
  return page.evaluate(`(() => {
    const tables = [...document.querySelectorAll('table')];
    const found = tables.find((one) => one.caption.textContent === ${JSON.stringify(caption)});
    return [...found.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  })()`)
}

/** Clicks an element, as a user would: it must be visible. */
async function click (page, selector) {
  const { x, y } = await page.evaluate(`(() => {
    const found = document.querySelector(${JSON.stringify(selector)});
    found.scrollIntoView({ block: 'center', behavior: 'instant' });
    const { left, top, width, height } = found.getBoundingClientRect();
    return { x: left + width / 2, y: top + height / 2 };
  })()`)
  for (const type of ['mousePressed', 'mouseReleased']) {
    await page.send('Input.dispatchMouseEvent', { type, x, y, button: 'left', clickCount: 1 })
  }
}

async function type (page, selector, text) {
  await page.evaluate(`(() => { const field = document.querySelector(${JSON.stringify(selector)}); field.focus(); field.value = ''; })()`)
  await page.send('Input.insertText', { text })
}

/** Records each status that the page reads. */
const RECORD = `(() => {
  const real = window.fetch;
  window.fetch = async (...given) => {
    const response = await real(...given);
    if (given[0] === 'status' && response.ok) window.lastStatus = await response.clone().json();
    return response;
  };
})()`

const sum = (rows, member) => rows.reduce((all, row) => all + row[member], 0)

async function valuesEqualStatus (page, world) {
  for (let n = 0; n < 3; n += 1) await world.ordgate.get(TOKEN)
  await world.ordgate.get('/nowhere')
  await page.send('Page.addScriptToEvaluateOnNewDocument', { source: RECORD })
  await open(page, world)
  await until('the values are those of /status', async () => {
    const shown = {
      routes: await table(page, 'Requests'),
      urls: await table(page, 'Base URLs'),
      heights: await page.evaluate('[...document.querySelectorAll(".tip b")].map((height) => height.textContent.replaceAll(",", ""))'),
      verdict: await page.evaluate('document.getElementById("verdict").className')
    }
    const status = await page.evaluate('window.lastStatus')
    const names = [...new Set(status.requests.map((row) => row.route ?? 'none'))]
    assert.deepEqual(shown.routes.map((row) => row[0]).sort(), names.sort())
    for (const [name, all, , hit] of shown.routes) {
      const rows = status.requests.filter((row) => (row.route ?? 'none') === name)
      assert.equal(all, String(sum(rows, 'requests')))
      assert.equal(hit, String(sum(rows.filter((row) => row.outcome === 'hit'), 'requests')))
    }
    assert.equal(shown.urls[0][4], String(status.upstream.endpoints[0].sent))
    assert.deepEqual(shown.heights, status.chain.tips.map((tip) => String(tip.height)))
    assert.equal(shown.verdict, 'good')
    return true
  })
  const [first] = await table(page, 'Requests')
  return first.slice(0, 3).join(', ')
}

/** A status as of an ordgate in trouble: what is wrong, and the tone and the words that say so. */
const TROUBLES = [
  ['status.chain.tips[0].moved_seconds_ago = 9000', 'warn', /The tip of ordinals has not moved for 2.5 h.*See upstreams/],
  ['status.upstreams.default.endpoints[0].condition = "broken"', 'bad', /The upstream does not answer: clients get stored answers/],
  ['Object.assign(status, { state: "not ready", not_ready: ["the tip is not known"] })', 'bad', /Not ready: the tip is not known/],
  ['status.reload = { ok: false, done: 0, refused: 1, last: { problems: ["a key is unknown"] } }', 'warn', /The last reload was refused: a key is unknown/]
]

async function saysWhatIsWrong (page, world) {
  for (const [change, tone, words] of TROUBLES) {
    const { identifier } = await page.send('Page.addScriptToEvaluateOnNewDocument', {
      source: `(() => {
        const real = window.fetch;
        window.fetch = async (...given) => {
          const response = await real(...given);
          if (given[0] !== 'status') return response;
          const status = await response.json();
          ${change};
          return Response.json(status);
        };
      })()`
    })
    await open(page, world)
    const said = await until('it says so', () => page.evaluate('document.getElementById("verdict").textContent.trim()'))
    assert.match(said, words)
    assert.equal(await page.evaluate('document.getElementById("verdict").className'), tone)
    await page.send('Page.removeScriptToEvaluateOnNewDocument', { identifier })
  }
}

async function showsFailuresInRed (page, world) {
  const { url } = (await world.ordgate.status()).upstream
  const control = (method, path) => fetch(`${url}/sandbox/${path}`, { method })
  await control('POST', 'fault?kind=500&times=1000&path=/runes/v1/blocks')
  try {
    for (let n = 0; n < 8; n += 1) await world.ordgate.get(`/runes/v1/blocks/${700000 + n}/activity`)
    await open(page, world)
    await until('failures have a chart of their own', () => page.evaluate('Boolean(document.querySelector("#chart-failed .line.failed"))'))
    await until('it says why', () => page.evaluate('/of requests failed in the last minute/.test(document.getElementById("verdict").textContent)'))
    assert.equal(await page.evaluate('document.getElementById("verdict").className'), 'bad')
    const [group] = await table(page, 'The last 64 errors, by reason and client')
    assert.deepEqual(group.slice(1, 4), ['server error', '127.0.0.1', '502'])
  } finally {
    await control('DELETE', 'fault')
  }
}

async function opensCleanly (page, world) {
  await world.ordgate.get(TOKEN)
  await open(page, world)
  await until('the charts are drawn', () => page.evaluate(`${charts} >= 3`))
  const own = new URL(world.ordgate.admin).origin
  assert.deepEqual(page.requests.filter((url) => !url.startsWith(`${own}/`)), [])
  assert.deepEqual(page.complaints, [])
  return `${page.requests.length} requests, all to the listener`
}

async function paintsEarly (page, world) {
  let best = Infinity
  // A busy machine paints late now and then.
  for (const end = Date.now() + 60000; best >= MOST_PAINT && Date.now() < end;) {
    await page.send('Network.setCacheDisabled', { cacheDisabled: true })
    await open(page, world)
    best = Math.min(best, await until('the page is painted', () => page.evaluate('performance.getEntriesByName("first-contentful-paint")[0]?.startTime')))
  }
  assert.ok(best < MOST_PAINT, `${best} ms`)
  return `${Math.round(best)} ms at best`
}

async function isSmall (page, world) {
  await open(page, world)
  const files = await page.evaluate(`[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .filter(({ name }) => !/[/](status|history)/.test(name)).map(({ name, encodedBodySize }) => [name, encodedBodySize])`)
  const bytes = files.reduce((all, [, size]) => all + size, 0)
  assert.ok(files.length >= 8 && files.every(([, size]) => size > 0), JSON.stringify(files))
  assert.ok(bytes <= MOST_BYTES, `${bytes}`)
  return `${bytes} bytes in ${files.length} files`
}

async function explainsInWords (page, world) {
  await world.ordgate.get(TOKEN)
  await open(page, world)
  await unfold(page)
  await type(page, '#explain-url', TOKEN)
  await click(page, '#explain-form button')
  const text = await until('there is an explanation', () => page.evaluate('document.querySelector("#explained .answer")?.textContent'))
  assert.match(text, /^The next request for it is (answered from memory|sent upstream)\. /)
  // A link of a table names the URL in the page's address, and unfolds the part.
  await page.evaluate('document.getElementById("explain").open = false')
  await page.evaluate('location.hash = "#explain=%2Fnowhere"')
  await until('the link is explained', () => page.evaluate('/refuse with 404/.test(document.getElementById("explained").textContent)'))
  return text
}

async function injectedTextIsInert (page, world) {
  const path = `/${encodeURIComponent(INJECTED)}`
  await world.ordgate.get(path)
  await world.ordgate.get(`/ordinals/v1/brc-20/tokens/${encodeURIComponent(INJECTED)}`)
  // Every text in what the page reads is the injection, beside what the process has seen.
  const source = `(() => {
    const real = window.fetch;
    const injected = ${JSON.stringify(INJECTED)};
    const poisoned = (value) => {
      if (typeof value === 'string') return injected;
      if (Array.isArray(value)) return value.map(poisoned);
      if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, poisoned(inner)]));
      return value;
    };
    window.fetch = async (...given) => {
      const response = await real(...given);
      if (!/status|explain/.test(given[0])) return response;
      const read = await response.json();
      const errors = [{ client: injected, method: injected, path: injected, status: 503, reason: injected, cause: injected, url: injected }];
      return Response.json(poisoned({ ...read, errors, refused: { [injected]: 1 } }));
    };
  })()`
  await page.send('Page.addScriptToEvaluateOnNewDocument', { source })
  await open(page, world)
  await unfold(page)
  await type(page, '#explain-url', `/${INJECTED}`)
  await click(page, '#explain-form button')
  await until('it is shown as text', () => page.evaluate(`document.getElementById('explained').textContent.includes(${JSON.stringify(INJECTED)})`))
  const [error] = await table(page, 'The last 64 errors, by reason and client')
  assert.deepEqual(error.slice(1, 3), [INJECTED, INJECTED])
  assert.equal(await page.evaluate('document.images.length + document.querySelectorAll("[onerror]").length'), 0)
  assert.equal(await page.evaluate('String(window.injected)'), 'undefined')
  // It is no URL, which Chromium reports beside the page.
  assert.deepEqual(page.complaints.filter((text) => !/400 .*[/]explain/.test(text)), [])
}

async function purgesAfterConfirmation (page, world) {
  await open(page, world)
  await page.evaluate('location.hash = "#actions"')
  const purges = async () => (await world.ordgate.status()).chain.purges
  const before = await purges()
  const isOpen = 'document.getElementById("confirm").open'
  await type(page, '#purge-what', TOKEN)
  await click(page, '#purge-form button')
  await until('it asks', () => page.evaluate(isOpen))
  assert.equal(await page.evaluate('document.activeElement.value'), 'no', 'what is safe has the focus')
  await click(page, '#confirm button[value=no]')
  await until('the dialog is closed', () => page.evaluate(`!${isOpen}`))
  // Escape closes it too.
  await click(page, '#purge-form button')
  await until('it asks', () => page.evaluate(isOpen))
  for (const kind of ['keyDown', 'keyUp']) await page.send('Input.dispatchKeyEvent', { type: kind, key: 'Escape', code: 'Escape', windowsVirtualKeyCode: 27 })
  await until('the dialog is closed', () => page.evaluate(`!${isOpen}`))
  assert.equal(await purges(), before)
  await click(page, '#purge-form button')
  await until('it asks', () => page.evaluate(isOpen))
  await click(page, '#confirm-yes')
  const said = await until('it is done', () => page.evaluate('document.querySelector("#done .answer")?.textContent'))
  assert.match(said, /^Purged url /)
  assert.ok(await purges() > before)
  assert.deepEqual(page.complaints, [])
  return said
}

async function reloadsAfterConfirmation (page, world) {
  await open(page, world)
  await page.evaluate('location.hash = "#actions"')
  const { done } = (await world.ordgate.status()).reload
  await click(page, '#reload')
  await until('it asks', () => page.evaluate('document.getElementById("confirm").open'))
  await click(page, '#confirm-yes')
  const said = await until('it is done', () => page.evaluate('document.querySelector("#done .answer")?.textContent'))
  assert.match(said, /^Reloaded/)
  assert.equal((await world.ordgate.status()).reload.done, done + 1)
}

async function worksThroughAnOutage (page, world) {
  await open(page, world)
  await page.evaluate('window.mark = 1')
  const lost = 'document.getElementById("connection").textContent.startsWith("No connection since")'
  const { port } = world.ordgate
  await world.ordgate.end()
  await until('the page says so', () => page.evaluate(lost))
  assert.equal(await page.evaluate('document.body.classList.contains("stale")'), true)
  // Another process may have the port for a moment.
  world.ordgate = await until('it starts on its port', () => Ordgate.start(world.binary, { admin: port }))
  await until('it goes on by itself', () => page.evaluate(connected))
  // A process that answers nothing, and then goes on.
  world.ordgate.process.kill('SIGSTOP')
  await until('the page notices that nothing comes', () => page.evaluate(lost))
  world.ordgate.process.kill('SIGCONT')
  await until('it goes on again', () => page.evaluate(connected))
  assert.equal(await page.evaluate('window.mark'), 1, 'the page was not loaded again')
  // Chromium itself reports the connections that were refused.
  assert.deepEqual(page.complaints.filter((text) => !text.startsWith('Failed to load resource')), [])
}

async function fitsAPhone (page, world) {
  await world.ordgate.get(TOKEN)
  await page.look({ width: 360, height: 740, mobile: true })
  await open(page, world)
  await until('the charts are drawn', () => page.evaluate(`${charts} >= 3`))
  const width = await page.evaluate('Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)')
  assert.ok(width <= 360, `${width}`)
  // The first screen of a phone, and of a small desktop, has all that is not folded.
  for (const [wide, high] of [[390, 844], [1400, 900]]) {
    await page.look({ width: wide, height: high, mobile: wide < 500 })
    await open(page, world)
    const folds = await until('it is laid out', () => page.evaluate('document.querySelector("#tips b") && document.getElementById("routes").getBoundingClientRect().top'))
    assert.ok(folds <= high, `${folds} of ${high}`)
  }
}

/** The least contrast of texts with what is behind them (WCAG 2). */
const CONTRAST = `(() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    const [red, green, blue] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const texts = ['--text', '--quiet', '--link', '--good', '--bad', '--warn'];
  return Math.min(...texts.flatMap((text) => ['--page', '--card'].map((ground) => ratio(light(text), light(ground)))));
})()`

async function isLightAndDark (page, world) {
  const grounds = []
  for (const dark of [false, true]) {
    await page.look({ width: 1280, height: 1000, dark })
    await open(page, world)
    grounds.push(await page.evaluate('getComputedStyle(document.body).backgroundColor'))
    const contrast = await page.evaluate(CONTRAST)
    assert.ok(contrast >= 4.5, `${dark ? 'dark' : 'light'}: ${contrast}`)
  }
  const [light, dark] = grounds.map((color) => color.match(/\d+/g).map(Number)[0])
  assert.ok(light > 200 && dark < 60, `${grounds}`)
}

async function worksByKeyboardAndScreenReader (page, world) {
  await open(page, world)
  await unfold(page)
  const { nodes } = await page.send('Accessibility.getFullAXTree')
  const of = (...roles) => nodes.filter((node) => !node.ignored && roles.includes(node.role?.value))
  for (const role of ['banner', 'navigation', 'main', 'contentinfo']) assert.equal(of(role).length, 1, role)
  const nameless = of('button', 'textbox', 'combobox', 'link', 'table', 'image', 'region').filter((node) => !node.name?.value)
  assert.deepEqual(nameless.map((node) => node.role.value), [])
  assert.ok(of('table').length >= 5 && of('columnheader').length > 20)
  assert.ok(of('status').length >= 3, 'what changes is announced')
  for (const kind of ['keyDown', 'keyUp']) await page.send('Input.dispatchKeyEvent', { type: kind, key: 'Tab', code: 'Tab', windowsVirtualKeyCode: 9 })
  assert.equal(await page.evaluate('document.activeElement.className'), 'skip')
  const outline = await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')
  assert.notEqual(outline, 'none', 'the focus is visible')
}

async function pausesWhileHidden (page, world) {
  await open(page, world)
  const hide = (hidden) => page.evaluate(`Object.defineProperty(document, 'hidden', { value: ${hidden}, configurable: true });
    document.dispatchEvent(new Event('visibilitychange')); true`)
  await hide(true)
  // A round that has begun is finished; each of its requests takes 8 s at most.
  let before = page.requests.length
  let since = Date.now()
  await until('a round is finished', () => {
    if (page.requests.length !== before) [before, since] = [page.requests.length, Date.now()]
    return Date.now() - since > 9000
  })
  await sleep(5000)
  assert.equal(page.requests.length, before)
  await hide(false)
  await until('it goes on', () => page.requests.length > before)
}

async function asksForTheToken (page, world) {
  const ordgate = await Ordgate.start(world.binary, { env: { ORDGATE_ADMIN_TOKEN: 'the-secret' } })
  try {
    assert.equal((await ordgate.get('/status', ordgate.admin)).status, 401)
    await page.open(`${ordgate.admin}/`)
    const asks = '!document.getElementById("login").hidden'
    await until('it asks for the token', () => page.evaluate(asks))
    // One that no request can have is not tried.
    const stored = 'sessionStorage.getItem("ordgate-token")'
    for (const text of ['schlüssel', '鍵', 'two words']) {
      await type(page, '#token', text)
      await click(page, '#login-form button')
      assert.match(await page.evaluate('document.getElementById("token").validationMessage'), /^This is no admin token/)
      assert.equal(await page.evaluate(stored), null)
    }
    // One that ordgate refuses is forgotten.
    await type(page, '#token', 'wrong')
    await click(page, '#login-form button')
    await until('it is refused', () => page.evaluate(`${stored} === null && ${asks}`))
    // So is one that an earlier page has stored.
    for (const text of ['schlüssel', '鍵', 'wrong']) {
      await page.evaluate(`sessionStorage.setItem('ordgate-token', ${JSON.stringify(text)})`)
      await page.open(`${ordgate.admin}/`)
      await until('it asks again', () => page.evaluate(`${stored} === null && ${asks}`))
    }
    await type(page, '#token', 'the-secret')
    await click(page, '#login-form button')
    await until('the data are shown', () => page.evaluate(`${connected} && document.getElementById('login').hidden && !document.getElementById('data').hidden`))
    assert.equal(await page.evaluate('document.documentElement.outerHTML.includes("the-secret")'), false)
    await page.evaluate('location.hash = "#actions"')
    await click(page, '#reload')
    await click(page, '#confirm-yes')
    await until('it may reload', () => page.evaluate('/^Reloaded/.test(document.querySelector("#done .answer")?.textContent)'))
  } finally {
    await ordgate.end()
  }
}

export const checks = [
  ['the page opens without an error and without a request to elsewhere', opensCleanly],
  ['the first paint is early', paintsEarly],
  ['its files are small', isSmall],
  ['its values are those of /status', valuesEqualStatus],
  ['it says what is wrong', saysWhatIsWrong],
  ['a URL is explained in words', explainsInWords],
  ['failures have a series of their own, and say why', showsFailuresInRed],
  ['text of clients is inert', injectedTextIsInert],
  ['a purge needs a confirmation', purgesAfterConfirmation],
  ['a reload needs a confirmation', reloadsAfterConfirmation],
  ['it fits a phone', fitsAPhone],
  ['it is light and dark, with enough contrast', isLightAndDark],
  ['it works by keyboard and with a screen reader', worksByKeyboardAndScreenReader],
  ['it pauses while it is hidden', pausesWhileHidden],
  ['it asks for the token where there is one', asksForTheToken],
  ['it works through an outage', worksThroughAnOutage],
  ...docsChecks,
  ...eventsChecks
]
