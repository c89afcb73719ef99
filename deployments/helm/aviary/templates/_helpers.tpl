{{- /*
aviary.resolve completes the context of a deployment, {root, service, key}, by its values, its name, and the ports of its service.
The values are those of `common`, of the service's section and of the deployment, in this order.
*/ -}}
{{- define "aviary.resolve" -}}
{{- $section := index .root.Values .service -}}
{{- $overrides := dict -}}
{{- if .key }}{{ $overrides = index $section.deployments .key }}{{ end -}}
{{- $values := mergeOverwrite (deepCopy .root.Values.common) (deepCopy (omit $section "deployments")) (deepCopy ($overrides | default dict)) -}}
{{- $_ := set $values "config" (get $values "config" | default dict) -}}
{{- $component := .service -}}
{{- if .key }}{{ $component = printf "%s-%s" .service .key }}{{ end -}}
{{- $name := printf "%s-%s" .root.Release.Name $component -}}
{{- if gt (len $name) 52 }}{{ fail (printf "%s: a name of more than 52 characters: Kubernetes adds suffixes" $name) }}{{ end -}}
{{- $ports := index (dict
  "nightingale" (dict "http" 9201 "admin" 9202)
  "pigeonhole" (dict "admin" 9302)
  "sonic" (dict "redis" 6380 "admin" 9303)
  "eventbridge" (dict "http" 9601 "admin" 9602)) .service -}}
{{- $_ := set . "values" $values -}}
{{- $_ := set . "name" $name -}}
{{- $_ := set . "component" $component -}}
{{- $_ := set . "ports" $ports -}}
{{- $_ := set . "port" (omit $ports "admin" | keys | first) -}}
{{- $_ := set . "stateful" (has .service (list "pigeonhole" "eventbridge")) -}}
{{- include "aviary.refuseSecrets" (dict "path" (printf "%s.config" $component) "key" "" "value" $values.config) -}}
{{- if and (eq .service "eventbridge") $values.autoscaling.enabled (ne (get $values.config "roles" | toString) "[preprocessor]") -}}
{{- fail (printf "%s.autoscaling: only a deployment with config.roles [preprocessor] can have it: engines and ordered subscribers share partitions" $component) -}}
{{- end -}}
{{- end -}}

{{- define "aviary.labels" -}}
{{ include "aviary.podLabels" . }}
app.kubernetes.io/version: {{ include "aviary.label" (.root.Values.image.tag | default .root.Chart.AppVersion) }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ include "aviary.label" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) }}
{{- end -}}

{{- /* aviary.label makes a valid value of a label. */ -}}
{{- define "aviary.label" -}}
{{ regexReplaceAll "[^A-Za-z0-9._-]" . "_" | trunc 63 | trimAll "-_." | quote }}
{{- end -}}

{{- /* Labels of pods have no version: a changed one would replace them. */ -}}
{{- define "aviary.podLabels" -}}
{{ include "aviary.selector" . }}
app.kubernetes.io/part-of: aviary
{{- end -}}

{{- define "aviary.selector" -}}
app.kubernetes.io/name: {{ .service }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "aviary.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "aviary.labels" . | nindent 2 }}
{{- with get . "hookWeight" }}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-weight: {{ . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
{{- end -}}

{{- /* aviary.refuseSecrets fails where a configuration has a secret in plain text, which would be in a ConfigMap and in the release. */ -}}
{{- define "aviary.refuseSecrets" -}}
{{- $names := list "password" "token" "tokens" "bearer_tokens" "client_secret" "api_keys" "signing_secrets" -}}
{{- range $key, $value := .value -}}
{{- $name := kindIs "string" $key | ternary $key $.key -}}
{{- $path := kindIs "string" $key | ternary (printf "%s.%v" $.path $key) (printf "%s[%v]" $.path $key) -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- include "aviary.refuseSecrets" (dict "path" $path "key" $name "value" $value) -}}
{{- else if and (has $name $names) $value (not (regexMatch "^[$][{][A-Za-z0-9_]+[}]$" (toString $value))) -}}
{{- fail (printf "%s: a secret in plain text: say ${NAME} and set NAME in secretEnv, or use the key that names a file, and secretFiles" $path) -}}
{{- else if regexMatch "://[^/@]*:[^/@]+@" (regexReplaceAll "://[^/@]*:[$][{][A-Za-z0-9_]+[}]@" (toString $value) "://") -}}
{{- fail (printf "%s: a URL with a password in plain text: say ${NAME} and set NAME in secretEnv" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* aviary.graceSeconds is how long a pod may take to end: shutdown_timeout of its configuration, the wait before, and a margin. */ -}}
{{- define "aviary.graceSeconds" -}}
{{- $timeout := get .values.config "shutdown_timeout" | default "30s" | toString -}}
{{- if not (regexMatch "^([0-9.]+(h|m|s|ms))+$" $timeout) -}}
{{- fail (printf "%s.config.shutdown_timeout: %s is no duration such as 30s or 1m30s" .component $timeout) -}}
{{- end -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-z]+" $timeout -1 -}}
{{- $unit := index (dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001) (regexFind "[a-z]+" .) -}}
{{- $seconds = addf $seconds (mulf (regexFind "[0-9.]+" . | float64) $unit) -}}
{{- end -}}
{{- add (ceil $seconds | int) 15 -}}
{{- end -}}
