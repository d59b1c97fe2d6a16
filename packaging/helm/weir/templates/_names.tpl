{{- define "weir.name" -}}
{{ printf "%s" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "weir.hasAdmin" -}}
{{- if or (ne .Values.mode "rules") .Values.adminSecret }}yes{{ end }}
{{- end }}

{{- /* Settings of the gateway: the chart's, with the values' own over them. */}}
{{- define "weir.settings" -}}
{{- $settings := dict "listen" (dict "http" (list "0.0.0.0:9080") "https" (list "0.0.0.0:9443") "metrics" "0.0.0.0:9091" "status" "0.0.0.0:7085") }}
{{- if include "weir.hasAdmin" . }}
{{- $_ := set $settings.listen "admin" "0.0.0.0:9180" }}
{{- $_ := set $settings "admin" (dict "allow" (list "0.0.0.0/0" "::/0") "hosts" (list (printf "%s-admin" (include "weir.name" .)))) }}
{{- end }}
{{- if eq .Values.mode "etcd" }}
{{- $_ := set $settings "deployment" (dict "config_provider" "etcd" "etcd" (dict "host" .Values.etcd.hosts "prefix" .Values.etcd.prefix)) }}
{{- end }}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.settings)) }}
{{- end }}

{{- define "weir.pod" -}}
metadata:
  labels:
    {{- include "weir.selector" . | nindent 4 }}
  annotations:
    checksum/settings: {{ include "weir.settings" . | sha256sum }}
    {{- if .Values.metrics.annotations }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9091"
    prometheus.io/path: /metrics
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: weir
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - run
        {{- if eq .Values.mode "rules" }}
        - /etc/weir/rules/rules.yaml
        {{- end }}
        - --settings
        - /etc/weir/settings/weir.yaml
      {{- if .Values.adminSecret }}
      env:
        - name: WEIR_ADMIN_KEY
          valueFrom:
            secretKeyRef: {name: {{ .Values.adminSecret }}, key: admin-key}
      {{- end }}
      ports:
        - {name: http, containerPort: 9080}
        - {name: https, containerPort: 9443}
        - {name: metrics, containerPort: 9091}
        - {name: status, containerPort: 7085}
        {{- if include "weir.hasAdmin" . }}
        - {name: admin, containerPort: 9180}
        {{- end }}
      readinessProbe:
        httpGet: {path: /status/ready, port: status}
        periodSeconds: 5
      livenessProbe:
        httpGet: {path: /status, port: status}
        periodSeconds: 10
        failureThreshold: 6
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: settings, mountPath: /etc/weir/settings, readOnly: true}
        - {name: data, mountPath: /var/lib/weir}
        {{- if eq .Values.mode "rules" }}
        - {name: rules, mountPath: /etc/weir/rules, readOnly: true}
        {{- end }}
  volumes:
    - name: settings
      configMap: {name: {{ include "weir.name" . }}-settings}
    {{- if eq .Values.mode "rules" }}
    - name: rules
      configMap: {name: {{ include "weir.name" . }}-rules}
    {{- end }}
    {{- if ne .Values.mode "store" }}
    - name: data
      emptyDir: {}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
