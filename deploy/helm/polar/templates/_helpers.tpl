{{- define "polar.selector" -}}
app.kubernetes.io/name: polar
app.kubernetes.io/component: {{ .component }}
{{- if ne .root.Release.Name "polar" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
{{- end }}

{{- define "polar.labels" -}}
{{ include "polar.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* Of everything: a release that is called polar has the names of deploy/kubernetes. */ -}}
{{- define "polar.name" -}}
{{- if eq .Release.Name "polar" }}polar{{ else }}{{ printf "polar-%s" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "polar.nodes.namespace" -}}
{{- .Values.nodes.namespace | default (printf "%s-nodes" .Release.Namespace) }}
{{- end }}

{{- define "polar.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "polar.server.url" -}}
http://{{ include "polar.name" . }}-server.{{ .Release.Namespace }}.svc:{{ .Values.server.port }}
{{- end }}

{{- define "polar.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "polar.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "polar.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "polar.storage" -}}
accessModes: {{ toJson .accessModes }}
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end }}

{{- define "polar.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "polar.server.config" -}}
data: /var/lib/polar
log: info
server:
  host: 0.0.0.0
  port: {{ .Values.server.port }}
  url: {{ include "polar.server.url" . }}
  database_file: /etc/polar/database/url
  files: /var/lib/polar-files
  tokens:
    - name: trainer
      scopes: [trainer, read]
      token_file: /etc/polar/tokens/trainer
    - name: node
      scopes: [node]
      token_file: /etc/polar/tokens/node
    - name: read
      scopes: [read]
      token_file: /etc/polar/tokens/read
{{- end }}

{{- define "polar.node.config" -}}
data: /var/lib/polar
log: info
node:
  server: {{ include "polar.server.url" . }}
  token_file: /etc/polar/token/token
  runtime: kubernetes
  drain_seconds: {{ sub .Values.nodes.terminationGracePeriodSeconds 300 }}
  harness_dir: /opt/polar/harnesses
  widths:
    init: 16
    ready: 8
    run: 32
    postrun: 16
  runtimes:
    kubernetes:
      namespace: {{ include "polar.nodes.namespace" . }}
      volumes:
        - from: /opt/polar/harnesses
          source:
            persistentVolumeClaim:
              claimName: {{ include "polar.name" . }}-harnesses
              readOnly: true
{{- end }}
