{{- /* aviary.container is the container of a service, without a field that a sidecar has in another way. */ -}}
{{- define "aviary.container" -}}
image: {{ include "aviary.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [-config.file, /etc/aviary/{{ .service }}.yaml]
env:
  {{- include "aviary.env" . | nindent 2 }}
ports:
  {{- range $name, $port := .ports }}
  - {name: {{ $name }}, containerPort: {{ $port }}}
  {{- end }}
{{- if not (get .values "sidecar") }}
{{- /* The admin port answers from the start, before Pulsar is there: no startup probe is needed. */}}
readinessProbe:
  {{- if eq .service "sonic" }}
  {{- /* Sonic listens once Redis answers. It serves reads from then on, even while it takes no writes and /-/ready is 503. */}}
  tcpSocket: {port: redis}
  {{- else }}
  httpGet: {path: /-/ready, port: admin}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}
livenessProbe:
  httpGet: {path: /-/healthy, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- if and .port (not (get .values "sidecar")) }}
{{- /* The pod leaves its Service before the service closes its port. */}}
lifecycle:
  preStop: {sleep: {seconds: 5}}
{{- end }}
securityContext:
  {{- include "aviary.securityContext" . | nindent 2 }}
{{- with .values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "aviary.volumeMounts" . | nindent 2 }}
{{- end -}}

{{- define "aviary.image" -}}
{{ .root.Values.image.repository }}/{{ .service }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "aviary.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if eq .service "eventbridge" }}
- name: EVENTBRIDGE_INSTANCE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- if get .values "sidecar" }}
- name: SONIC_LISTEN
  value: 127.0.0.1:6380
{{- end }}
{{- range $name, $ref := .values.secretEnv }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $ref.name }}, key: {{ $ref.key }}}}
{{- end }}
{{- end -}}

{{- define "aviary.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* A folder of its own for Secrets: nothing can be mounted below a ConfigMap. */ -}}
{{- define "aviary.volumeMounts" -}}
- {name: {{ .component }}-config, mountPath: /etc/aviary, readOnly: true}
{{- range $i, $secret := .values.secretFiles }}
- {name: {{ $.component }}-secret-{{ $i }}, mountPath: /etc/aviary-secrets/{{ $secret }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "aviary.volumes" -}}
- name: {{ .component }}-config
  configMap: {name: {{ .name }}}
{{- range $i, $secret := .values.secretFiles }}
- name: {{ $.component }}-secret-{{ $i }}
  secret: {secretName: {{ $secret }}}
{{- end }}
{{- end -}}

{{- /* aviary.pod is what the pods of a service and of its set-up have alike. */ -}}
{{- define "aviary.pod" -}}
automountServiceAccountToken: false
{{- /* Variables that Kubernetes makes of Services may look like those of a service's keys: SONIC_… */}}
enableServiceLinks: false
securityContext:
  fsGroup: 65532
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key, $value := pick .values "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with $value }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
volumes:
  {{- include "aviary.volumes" . | nindent 2 }}
{{- end -}}

{{- define "aviary.workload" }}
---
apiVersion: apps/v1
kind: {{ .stateful | ternary "StatefulSet" "Deployment" }}
metadata:
  {{- include "aviary.metadata" . | nindent 2 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false .values) }}
  replicas: {{ .values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "aviary.selector" . | nindent 6 }}
  {{- if .stateful }}
  serviceName: {{ .name }}-admin
  podManagementPolicy: Parallel
  {{- else }}
  strategy:
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  {{- end }}
  template:
    metadata:
      labels:
        {{- include "aviary.podLabels" . | nindent 8 }}
        {{- with .values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      annotations:
        checksum/config: {{ toYaml .values.config | sha256sum }}
        {{- with .values.podAnnotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      {{- include "aviary.pod" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ include "aviary.graceSeconds" . }}
      containers:
        - name: {{ .service }}
          {{- include "aviary.container" . | nindent 10 }}
      topologySpreadConstraints:
        {{- $ctx := . }}
        {{- range .values.topologyKeys }}
        - topologyKey: {{ . }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "aviary.selector" $ctx | nindent 14 }}
        {{- end }}
{{- end -}}
