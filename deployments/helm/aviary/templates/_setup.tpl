{{- /*
aviary.setup is a Job that Helm runs before it installs or upgrades, and waits for: the service with -setup. The ConfigMap of the
service is not there yet, so the Job has its own.
*/ -}}
{{- define "aviary.setup" }}
{{- if .values.setup.enabled }}
{{- $ctx := dict "root" .root "service" .service "values" .values "hookWeight" "-1" }}
{{- $_ := set $ctx "name" (printf "%s-setup" .name) }}
{{- $_ := set $ctx "component" (printf "%s-setup" .component) }}
{{- include "aviary.configmap" $ctx }}
{{- $_ := set $ctx "hookWeight" "0" }}
---
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "aviary.metadata" $ctx | nindent 2 }}
spec:
  backoffLimit: 3
  template:
    metadata:
      labels:
        {{- include "aviary.podLabels" $ctx | nindent 8 }}
    spec:
      restartPolicy: Never
      {{- include "aviary.pod" $ctx | nindent 6 }}
      containers:
        - name: setup
          image: {{ include "aviary.image" $ctx }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: [-config.file, /etc/aviary/{{ .service }}.yaml, -setup]
          env:
            {{- include "aviary.env" $ctx | nindent 12 }}
          securityContext:
            {{- include "aviary.securityContext" $ctx | nindent 12 }}
          {{- with .values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            {{- include "aviary.volumeMounts" $ctx | nindent 12 }}
{{- end }}
{{- end -}}
