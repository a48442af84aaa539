// Shows the document for readers: each path once, and words in place of patterns. The page
// follows the color scheme of the system.

const doc = document.getElementById('doc')
const dark = matchMedia('(prefers-color-scheme: dark)')

function follow () {
  doc.setAttribute('theme', dark.matches ? 'dark' : 'light')
  doc.setAttribute('bg-color', dark.matches ? '#10151b' : '#ffffff')
  doc.setAttribute('primary-color', dark.matches ? '#7db7ff' : '#0b57b5')
}

/** Leaves out HEAD, which is as GET, and patterns, which the descriptions say in words. */
function forReaders (spec) {
  for (const item of Object.values(spec.paths)) {
    if (item.get) delete item.head
    for (const { parameters = [] } of [item, ...Object.values(item)]) {
      for (const { schema } of parameters) {
        delete schema?.pattern
        delete schema?.allOf
      }
    }
  }
  return spec
}

// A gateway that needs no token has no schemes to choose from.
doc.addEventListener('spec-loaded', (event) => {
  const needsToken = event.detail.securitySchemes?.some((scheme) => scheme.type)
  doc.setAttribute('allow-authentication', String(Boolean(needsToken)))
})

dark.addEventListener('change', follow)
follow()

async function show () {
  try {
    const [answer] = await Promise.all([fetch('openapi.json'), customElements.whenDefined('rapi-doc')])
    if (!answer.ok) throw new Error(`it answers ${answer.status}`)
    await doc.loadSpec(forReaders(await answer.json()))
  } catch (error) {
    doc.replaceWith(`The description could not be loaded (${error.message}): load the page again.`)
  }
}
show()
