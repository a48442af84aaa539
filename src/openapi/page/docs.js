// The page follows the color scheme of the system.

const doc = document.getElementById('doc')
const dark = matchMedia('(prefers-color-scheme: dark)')

function follow () {
  doc.setAttribute('theme', dark.matches ? 'dark' : 'light')
  doc.setAttribute('bg-color', dark.matches ? '#10151b' : '#ffffff')
  doc.setAttribute('primary-color', dark.matches ? '#7db7ff' : '#0b57b5')
}

// A gateway that needs no token has no schemes to choose from.
doc.addEventListener('spec-loaded', (event) => {
  const needsToken = event.detail.securitySchemes?.some((scheme) => scheme.type)
  doc.setAttribute('allow-authentication', String(Boolean(needsToken)))
})

dark.addEventListener('change', follow)
follow()
