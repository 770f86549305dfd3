{{- define "lakehead.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "lakehead.selector" -}}
app.kubernetes.io/name: lakehead
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lakehead.labels" -}}
{{ include "lakehead.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The security protocol of clients' listeners. */}}
{{- define "lakehead.protocol" -}}
{{- if and .Values.tls.enabled .Values.sasl.enabled }}SASL_SSL
{{- else if .Values.tls.enabled }}SSL
{{- else if .Values.sasl.enabled }}SASL_PLAINTEXT
{{- else }}PLAINTEXT
{{- end -}}
{{- end -}}

{{/* The settings of all nodes, as TOML: a value that a user gives has precedence. */}}
{{- define "lakehead.settings" -}}
{{- $nodes := ternary "SSL" "PLAINTEXT" .Values.tls.enabled -}}
{{- $clients := include "lakehead.protocol" . -}}
{{- $listeners := printf "CLIENTS://0.0.0.0:%d,NODES://0.0.0.0:%d" (int .Values.ports.clients) (int .Values.ports.nodes) -}}
{{- $map := printf "CLIENTS:%s,NODES:%s" $clients $nodes -}}
{{- if .Values.external.enabled -}}
{{- $listeners = printf "%s,EXTERNAL://0.0.0.0:%d" $listeners (int .Values.ports.external) -}}
{{- $map = printf "%s,EXTERNAL:%s" $map $clients -}}
{{- end -}}
{{- $made := dict
      "store" (required "store is required: s3://bucket/prefix" .Values.store)
      "wal" .Values.wal
      "data" "/var/lib/lakehead"
      "listeners" $listeners
      "listener.security.protocol.map" $map
      "inter.broker.listener.name" "NODES"
      "metrics.port" (int .Values.ports.metrics)
      "metrics.host" "0.0.0.0"
      "shutdown.timeout.ms" (mul 1000 (sub (int .Values.terminationGracePeriodSeconds) (add (int .Values.drainSeconds) 20))) -}}
{{- if .Values.tls.enabled -}}
{{- $_ := required "tls.secretName is required" .Values.tls.secretName -}}
{{- $made = merge $made (dict
      "ssl.keystore.location" "/etc/lakehead/tls/tls-combined.pem"
      "ssl.truststore.location" "/etc/lakehead/tls/ca.crt"
      "ssl.client.auth" .Values.tls.clientAuth) -}}
{{- end -}}
{{- if .Values.sasl.enabled -}}
{{- $_ := required "sasl.secretName is required" .Values.sasl.secretName -}}
{{- $made = merge $made (dict
      "sasl.enabled.mechanisms" .Values.sasl.mechanisms
      "bootstrap.admin" .Values.sasl.admin
      "bootstrap.admin.password" "${directory:/etc/lakehead/sasl:password}"
      "authorizer.class.name" "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
      "super.users" (printf "User:%s" .Values.sasl.admin)) -}}
{{- end -}}
{{- range $name, $value := merge (deepCopy .Values.settings) $made }}
{{ $name | quote }} = {{ if kindIs "string" $value }}{{ $value | quote }}{{ else if kindIs "float64" $value }}{{ $value | int64 }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end -}}
