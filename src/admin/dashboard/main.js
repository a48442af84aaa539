// The page: reads the state of the process and shows it.

import { makeActions } from './actions.js'
import { makeDetails, showDetails } from './details.js'
import { showOverview } from './overview.js'
import { poll, useToken } from './source.js'
import { byId, duration, setText } from './text.js'

function connection (state, text) {
  setText(byId('connection'), text)
  byId('connection').className = state === 'good' ? 'good' : 'bad'
  document.body.classList.toggle('stale', state === 'bad')
  const needsToken = state === 'token'
  if (byId('login').hidden === needsToken) {
    byId('login').hidden = !needsToken
    byId('data').hidden = needsToken
    if (needsToken) byId('token').focus()
  }
}

makeDetails()
const again = poll((status) => {
  connection('good', 'Connected')
  setText(byId('about'), `${status.version}, up ${duration(status.uptime_seconds)}, on ${status.listen}`)
  showOverview(status)
  showDetails(status)
}, connection)
makeActions()

byId('token').addEventListener('input', (event) => event.target.setCustomValidity(''))
byId('login-form').addEventListener('submit', (event) => {
  event.preventDefault()
  const field = byId('token')
  const wrong = useToken(field.value)
  if (wrong) {
    field.setCustomValidity(wrong)
    return field.reportValidity()
  }
  field.value = ''
  again()
})
