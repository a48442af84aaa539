// The page: reads the state of the process and shows it.

import { makeActions } from './actions.js'
import { makeCharts, updateCharts } from './charts.js'
import { poll, useToken } from './source.js'
import { makeTables, updateTables } from './tables.js'
import { setText } from './text.js'

makeCharts()
makeTables()
makeActions()

const place = document.getElementById('connection')
const login = document.getElementById('login')
const data = document.getElementById('data')

function connection (state, text) {
  setText(place, text)
  place.className = state === 'good' ? 'good' : 'bad'
  document.body.classList.toggle('stale', state === 'bad')
  const needsToken = state === 'token'
  if (login.hidden === needsToken) {
    login.hidden = !needsToken
    data.hidden = needsToken
    if (needsToken) document.getElementById('token').focus()
  }
}

const again = poll((status) => {
  if (data.hidden) connection('good', 'Connected')
  updateTables(status)
  updateCharts()
}, connection)

document.getElementById('token').addEventListener('input', (event) => event.target.setCustomValidity(''))
document.getElementById('login-form').addEventListener('submit', (event) => {
  event.preventDefault()
  const field = document.getElementById('token')
  const wrong = useToken(field.value)
  if (wrong) {
    field.setCustomValidity(wrong)
    return field.reportValidity()
  }
  field.value = ''
  again()
})
