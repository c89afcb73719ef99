{{- define "aviary.configmap" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "aviary.metadata" . | nindent 2 }}
data:
  {{ .service }}.yaml: |
    {{- toYaml .values.config | nindent 4 }}
{{- end -}}

{{- /* The service's own port, and the admin port without a virtual address: Prometheus reads every pod, ready or not. */ -}}
{{- define "aviary.services" }}
{{- if .port }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "aviary.metadata" . | nindent 2 }}
  {{- with .values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .values.service.type }}
  {{- if eq .service "nightingale" }}
  {{- /* A request that a sender repeats is recognised by the process that had it first. */}}
  sessionAffinity: ClientIP
  {{- end }}
  selector:
    {{- include "aviary.selector" . | nindent 4 }}
  ports:
    - {name: {{ .port }}, port: {{ index .ports .port }}, targetPort: {{ .port }}}
{{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-admin
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "aviary.labels" . | nindent 4 }}
    {{- $zone := .values.zone | default (get .values.config "zone") | toString }}
    {{- if regexMatch "^[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?$" $zone }}
    zone: {{ $zone | quote }}
    {{- end }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "aviary.selector" . | nindent 4 }}
  ports:
    - {name: admin, port: {{ .ports.admin }}, targetPort: admin}
{{- end -}}

{{- define "aviary.availability" }}
{{- if .values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "aviary.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  {{- /* A pod that waits for Pulsar is not ready, and may be evicted all the same. */}}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "aviary.selector" . | nindent 6 }}
{{- end }}
{{- if dig "autoscaling" "enabled" false .values }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "aviary.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ .stateful | ternary "StatefulSet" "Deployment" }}
    name: {{ .name }}
  minReplicas: {{ .values.autoscaling.minReplicas }}
  maxReplicas: {{ .values.autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .values.autoscaling.cpuUtilization }}}
{{- end }}
{{- end -}}

{{- define "aviary.networkpolicy" }}
{{- if .values.networkPolicy.enabled }}
{{- $ports := index (dict
  "nightingale" list
  "pigeonhole" (list 9092 9093 5671 5672)
  "sonic" (list 6379 26379)
  "eventbridge" (list 443)) .service | concat (list 6650 6651 8080 8443) }}
{{- range .values.networkPolicy.egressPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- /* Each ":port" behind a name or an address of the configuration. */}}
{{- range regexFindAll "[A-Za-z0-9\\]}]:[0-9]{2,5}\\b" (toYaml .values.config) -1 }}
{{- $port := regexFind "[0-9]+$" . | int }}
{{- if le $port 65535 }}{{ $ports = append $ports $port }}{{ end }}
{{- end }}
{{- range regexFindAll "https?://[^/\\s\"',]+" (toYaml .values.config) -1 }}
{{- if not (regexMatch ":[0-9]+$" .) }}{{ $ports = append $ports (hasPrefix "https" . | ternary 443 80) }}{{ end }}
{{- end }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "aviary.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "aviary.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- if .port }}
    - ports: [{port: {{ .port }}}]
      {{- with .values.networkPolicy.clients }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
    {{- with .values.networkPolicy.monitoring }}
    - ports: [{port: admin}]
      from:
        {{- toYaml . | nindent 8 }}
    {{- end }}
  egress:
    - ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
        {{- range $ports | uniq }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
{{- end }}
{{- end -}}
