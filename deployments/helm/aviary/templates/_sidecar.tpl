{{- /*
For the chart of an application that has this one as a dependency, with sonic.sidecar: true. The context is .Subcharts.aviary.
aviary.sonic.sidecar is an item of initContainers, aviary.sonic.volumes are items of volumes, and terminationGracePeriodSeconds of the
application has to be longer than its own time by aviary.sonic.graceSeconds. Applications connect to 127.0.0.1:6380.
*/ -}}
{{- define "aviary.sonic.sidecar" -}}
{{- $ctx := dict "root" . "service" "sonic" "key" "" -}}
{{- include "aviary.resolve" $ctx -}}
- name: sonic
  restartPolicy: Always
  {{- include "aviary.container" $ctx | nindent 2 }}
  {{- /* The containers beside it start once it takes writes. Later they read from it all the same: there is no readiness probe. */}}
  startupProbe:
    httpGet: {path: /-/ready, port: admin}
    periodSeconds: 1
    failureThreshold: 300
{{- end -}}

{{- define "aviary.sonic.volumes" -}}
{{- $ctx := dict "root" . "service" "sonic" "key" "" -}}
{{- include "aviary.resolve" $ctx -}}
{{- include "aviary.volumes" $ctx -}}
{{- end -}}

{{- define "aviary.sonic.graceSeconds" -}}
{{- $ctx := dict "root" . "service" "sonic" "key" "" -}}
{{- include "aviary.resolve" $ctx -}}
{{- include "aviary.graceSeconds" $ctx -}}
{{- end -}}
