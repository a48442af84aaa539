{{- define "ordgate.labels" -}}
{ app.kubernetes.io/name: ordgate, app.kubernetes.io/component: edge, app.kubernetes.io/instance: {{ .Release.Name | quote }} }
{{- end }}
{{- define "ordgate.secret" -}}
{{ .Values.secretName | default .Release.Name | quote }}
{{- end }}
{{- define "ordgate.config" -}}
upstream.url = {{ required "upstream.url is not set: give the provider's URL, --set upstream.url=https://..." .Values.upstream.url | toJson }}
upstream.api_keys_file = "/run/secrets/ordgate/api-keys"
upstream.requests_per_minute = {{ .Values.upstream.requestsPerMinute | int64 }}
upstream.requests_per_second = {{ .Values.upstream.requestsPerSecond | int64 }}
server.listen = "0.0.0.0:8080"
server.drain_delay = "10s"
server.drain_timeout = "30s"
clients.trusted_proxies = {{ .Values.trustedProxies | toJson }}
admin.listen = "0.0.0.0:9090"
admin.token_file = "/run/secrets/ordgate/admin-token"
cache.max_bytes = {{ .Values.cacheBytes | toJson }}
state.path = "/var/lib/ordgate/state"
state.max_bytes = "1GiB"
{{- with .Values.config }}
{{ . }}
{{- end }}
{{- end }}
